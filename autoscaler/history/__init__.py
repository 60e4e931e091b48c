"""A service's load before Sojourn watched it: read from a file or Prometheus, and learned from."""
