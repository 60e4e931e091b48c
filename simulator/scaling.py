"""What scales a simulated fleet: what it is shown, and what it answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autoscaler.reports import ReplicaReport

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FleetView:
    """The fleet at the end of a second, as an autoscaler may see it: nothing of the future.

    Attributes
    ----------
    now_s : float
        Seconds since the run began.
    ordered : int
        Replicas ordered so far: those that serve, and those that start. What is leaving is none.
    ready : int
        Replicas that serve.
    offered : float
        Requests that clients offered in the last second, once each, answered or not.
    refused : float
        Requests that were given up in the last second, refused by every try.
    ongoing : float
        Requests in the fleet, waiting or on a device, as a mean over the last second; while no
        replica serves, those that wait for one.
    start_times_s : FloatArray, shape (starts,)
        How long the replicas took that have become ready so far, oldest first.
    reports : callable
        Gives the report of each ready replica, as a live one would send it; to be called before
        the fleet goes on.
    """

    now_s: float
    ordered: int
    ready: int
    offered: float
    refused: float
    ongoing: float
    start_times_s: FloatArray
    reports: Callable[[], list[ReplicaReport]]


class ScalingPolicy(Protocol):
    """Decides how many replicas a simulated fleet has; one object serves one run.

    Where it has an attribute ``forecast_per_s``, the rate that it sized for, a run keeps that.
    """

    @property
    def name(self) -> str:
        """What it is called in tables and plots."""

    def replicas(self, view: FleetView) -> int:
        """Give the replicas that should be ordered; called once a second, bounded by the caller."""
