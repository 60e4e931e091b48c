"""The parts of `benchmarks.simulated.autoscaler`: its cases, its runs, its report."""
