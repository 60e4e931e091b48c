"""Autoscalers of a simulated fleet: Sojourn's own, the competitors, and the oracle.

Each is a `autoscaler.simulator.scaling.ScalingPolicy`, one module per family; the module's
docstring has the published rule and its source. All see the same `FleetView` once a second and
scale the same fleet: batching, routing and refusing are Sojourn's for all of them. `registry` lists
them by name.
"""
