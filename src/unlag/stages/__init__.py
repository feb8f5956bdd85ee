"""The three stages of a fix, in the article's order; each is a small measured search."""
