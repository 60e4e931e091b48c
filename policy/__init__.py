"""The mathematics of batching: no Ray, no torch, no clock."""
