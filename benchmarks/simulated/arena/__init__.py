"""What `benchmarks.simulated.autoscaler` runs, and how it reports."""
