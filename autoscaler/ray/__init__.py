"""Where the autoscaler touches Ray, beside its two policy classes: state and metrics."""
