"""A constant number of replicas, such as a fleet sized for its busiest time."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from autoscaler.simulator.scaling import FleetView
from policy.errors import InvalidInputError


@dataclass(frozen=True)
class FixedFleet:
    """A constant number of replicas.

    Attributes
    ----------
    count : int
        At least 1.
    name : str

    Raises
    ------
    InvalidInputError
        The count is below 1.
    """

    count: int
    name: str = "static"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InvalidInputError(f"replicas: must be at least 1, not {self.count}")

    def replicas(self, view: FleetView) -> int:
        """Return the constant."""
        return self.count


def fixed_at_peak(offered: ArrayLike, sla_rate_per_s: float, window_s: int = 1) -> FixedFleet:
    """Return a fixed fleet for the busiest `window_s` of a trace that is known in advance.

    Parameters
    ----------
    offered : array of float, shape (seconds,)
        Requests in each second.
    sla_rate_per_s : float
        Highest arrival rate of one replica within the SLA.
    window_s : int
        The rate is averaged over this many seconds.
    """
    counts = np.asarray(offered, dtype=float)
    width = min(window_s, counts.size)
    means = np.convolve(counts, np.ones(width) / width, mode="valid")
    replicas = math.ceil(float(means.max()) / sla_rate_per_s - 1e-9)
    return FixedFleet(max(1, replicas), name="static at peak")
