"""Pipelines: stages with their own workers, batches and CPUs, under one end-to-end SLA.

The user's side is `steps` and `pipeline`, exported by `sojourn`. Decisions are made by
`pipeline_core` and `stage_core`, which know no clock; `workers` runs the user's code.
"""
