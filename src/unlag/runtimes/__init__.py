"""One file a runtime, all delivering the same normal form."""
