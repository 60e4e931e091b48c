"""A constant number of replicas."""

from dataclasses import dataclass

from autoscaler.simulator.scaling import FleetView


@dataclass(frozen=True)
class FixedFleet:
    """A constant number of replicas, at least 1."""

    count: int
    name = "fixed"

    def replicas(self, view: FleetView) -> int:
        return self.count
