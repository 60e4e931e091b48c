"""The interface between a simulated fleet and its autoscaler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from autoscaler.reports import ReplicaReport


@dataclass(frozen=True, eq=False)
class FleetView:
    """The fleet at the end of a second, as an autoscaler may see it: the past, never the future.

    Attributes
    ----------
    now_s : float
        Seconds since the run began.
    ordered : int
        Replicas that serve or start. Draining replicas are excluded.
    ready : int
        Replicas that serve.
    standbys : int
        Standbys, starting ones included.
    offered : float
        Requests that clients offered in the last second, once each, answered or not.
    ongoing : float
        Mean number of requests in the replicas over the last second, waiting or on a device; while
        no replica serves, of the requests held for one.
    reports : callable
        Returns the report of each ready replica, as a live one would send it. Call it before the
        simulation goes on.
    """

    now_s: float
    ordered: int
    ready: int
    standbys: int
    offered: float
    ongoing: float
    reports: Callable[[], list[ReplicaReport]]


class ScalingPolicy(Protocol):
    """Decides the number of replicas of a simulated fleet. One object serves one run.

    If it has an attribute ``forecast_per_s``, the arrival rate of its sizing, the run records it.
    If it has an attribute ``standbys``, the fleet of a scenario with standbys has that many.
    """

    @property
    def name(self) -> str:
        """Its name in tables and plots."""

    def replicas(self, view: FleetView) -> int:
        """Return how many replicas should be ordered.

        It is called at the end of every second. The caller applies the bounds.
        """
