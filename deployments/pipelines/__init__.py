"""Pipelines: stages with their own workers, batches and CPUs, under one end-to-end SLA.

================  ==============================================================================
`core`            what a pipeline is and decides, without a clock
`pipeline`        a pipeline on an event loop, exported by `sojourn` with its steps
`stage_workers`   the stages' workers, latencies and policies; `workers` runs the user's code
`autoscaler`      scales the stages of a running pipeline
`planning`        predicts response times, and the workers that an SLA needs
`serving`         the HTTP interface and the Ray Serve application
================  ==============================================================================
"""
