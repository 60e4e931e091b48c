"""The model servers that are compared with Sojourn, and the clients that measure them.

`benchmarks.live.data_path` runs the comparison. Each server hosts the same models.
"""
