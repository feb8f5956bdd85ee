"""What is compared: variants, their graphs, and the workloads they run."""
