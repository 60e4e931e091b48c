"""Records of single requests: their ids, the log of the failed ones, and traces."""
