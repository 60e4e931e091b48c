"""A fleet on virtual time, run by the real batching policy, batcher core and autoscaler."""
