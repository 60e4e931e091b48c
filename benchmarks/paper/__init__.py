"""Reproductions of the papers, and timings of the solvers."""
