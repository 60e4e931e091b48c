"""Measurements that anyone can run: each prints ratios of what it ran side by side."""
