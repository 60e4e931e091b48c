"""The Ray Serve replica, and the service of a model behind its batcher."""
