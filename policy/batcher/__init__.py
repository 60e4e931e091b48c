"""The batcher core: queue, limits, admission and batches on any clock."""
