"""A constant number of replicas: what a fleet costs that is sized for its busiest time."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from policy.errors import InvalidInputError
from simulator.scaling import FleetView


@dataclass(frozen=True)
class FixedFleet:
    """Always the same.

    Attributes
    ----------
    count : int
    name : str
    """

    count: int
    name: str = "static"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InvalidInputError(f"replicas: must be at least 1, not {self.count}")

    def replicas(self, view: FleetView) -> int:
        """Give the constant."""
        return self.count


def fixed_at_peak(offered: ArrayLike, sla_rate_per_s: float, window_s: int = 1) -> FixedFleet:
    """Size for the busiest `window_s` of a trace, known beforehand.

    Parameters
    ----------
    offered : array of float, shape (seconds,)
        Requests of each second.
    sla_rate_per_s : float
        Highest rate of one replica within the SLA.
    window_s : int
        The rate counts as a mean over this long.
    """
    counts = np.asarray(offered, dtype=float)
    width = min(window_s, counts.size)
    means = np.convolve(counts, np.ones(width) / width, mode="valid")
    least = math.ceil(float(means.max()) / sla_rate_per_s - 1e-9)
    return FixedFleet(max(1, least), name="static at peak")
