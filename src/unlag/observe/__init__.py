"""Evidence about both sides, in one normal form."""
