"""A fleet in virtual time, with the real policies and autoscaler, and the batcher's decisions."""
