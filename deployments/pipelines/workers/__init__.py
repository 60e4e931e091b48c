"""The workers of a stage: in processes, in threads, on the event loop, or Ray replicas."""
