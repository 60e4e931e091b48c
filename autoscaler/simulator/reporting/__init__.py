"""Reports of simulated runs: comparisons as tables, plots and an HTML page."""
