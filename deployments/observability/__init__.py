"""Records of requests: ids, the log of failures, metrics and traces."""
