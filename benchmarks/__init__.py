"""Measurements that anyone can repeat; `benchmarks/README.md` lists them."""
