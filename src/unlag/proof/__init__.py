"""Causes proven by taking them away, and added up to the gap."""
