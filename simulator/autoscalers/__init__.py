"""What scales a simulated fleet: Sojourn's own autoscaler, those it is compared with, the oracles.

Each is a `simulator.scaling.ScalingPolicy`, one module per family, with the published rule and its
source in the module's docstring. All of them see the same `FleetView`, once a second, and scale the
same fleet: batching, routing and refusing are Sojourn's for all.
"""
