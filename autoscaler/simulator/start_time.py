"""The time from a replica's order until it serves."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from numpy.random import Generator

from policy.values import check_at_least


@dataclass(frozen=True)
class StartTime:
    """The time from a replica's order until it serves, lognormal.

    Attributes
    ----------
    median_s : float
        Median, at least 0.
    spread : float
        Standard deviation of the logarithm, at least 0. With 0 the time is constant; with 0.3 one
        start in twenty takes 1.6 times the median or longer.

    Raises
    ------
    InvalidInputError
        A value is negative or not finite.
    """

    median_s: float = 60.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        for name in ("median_s", "spread"):
            check_at_least(0, f"start time: {name}", getattr(self, name))

    def draw_s(self, random: Generator) -> float:
        """Draw a start time in s."""
        return self.median_s * math.exp(self.spread * random.standard_normal())

    def percentile_s(self, percentile: float) -> float:
        """Return a percentile of the start time in s."""
        return self.median_s * math.exp(self.spread * NormalDist().inv_cdf(percentile / 100))
