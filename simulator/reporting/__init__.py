"""Comparisons of simulated runs, as tables, plots and an HTML report."""
