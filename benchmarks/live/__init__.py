"""Benchmarks of real services on this machine; they take all of its cores."""
