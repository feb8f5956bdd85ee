"""What is run and scored: one file a task, found by its file name."""
