"""Runtimes that unlag itself doesn't have yet, behind its own contract, so that they take part in its contest."""
