"""The results of a load test: percentiles, thresholds, tables and the page."""
