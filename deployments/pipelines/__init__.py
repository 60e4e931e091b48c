"""Pipelines: stages with their own workers, batches and CPUs, under one end-to-end SLA."""
