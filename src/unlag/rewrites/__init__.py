"""Graph rewrites that remedies use: one file each, each keeps the outputs."""
