"""The mathematics of batching: when a free device should start a batch, and what follows.

No Ray, no torch, no clock: numbers in, numbers out. `sojourn` exports what users need of it.
"""
