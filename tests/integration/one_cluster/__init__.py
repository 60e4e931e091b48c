"""Tests that share one Ray cluster; this file makes the folder a package, to pytest."""
