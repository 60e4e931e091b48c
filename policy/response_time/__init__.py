"""The response-time distribution of a batching policy, without simulation."""
