"""Steps, queues and requests of a pipeline, without a clock."""
