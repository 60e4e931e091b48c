"""Keep a replica's batching policy right while it runs."""
