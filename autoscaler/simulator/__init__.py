"""A fleet in virtual time, with the real batching policy, batcher core and autoscaler."""
