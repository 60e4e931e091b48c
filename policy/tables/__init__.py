"""Policy tables: the batching policy for each arrival rate, solved ahead, and kept in files."""
