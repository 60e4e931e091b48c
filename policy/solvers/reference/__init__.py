"""The reference methods: the paper's truncated decision process, and two textbook solvers of it.

The product solves with `policy.solvers.exact`. These methods are slower and need a queue length and
an overflow cost to be chosen; the tests compare the exact solver with them.
"""
