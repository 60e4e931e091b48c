"""The Ray Serve application: configuration, batcher, replica, routing and metrics."""
