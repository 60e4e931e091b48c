"""Solvers for the batching policy."""
