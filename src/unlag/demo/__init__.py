"""The article's case: a standard model from a checkpoint, and its Flash variant."""
