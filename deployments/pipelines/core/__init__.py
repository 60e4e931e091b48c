"""What a pipeline is and decides, without a clock: its steps, its queues, its requests."""
