"""Ray's saved state and metrics, for the autoscaler."""
