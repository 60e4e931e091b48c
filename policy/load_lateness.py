"""The load-lateness curve of a replica: how many arrivals it takes under an SLA, and what is late.

A request is late unless it is accepted and answered within the SLA's response time: a replica with
a finite waiting room refuses what finds no room. `policy.solvers.load_lateness` computes the curve.

Beyond the rate that meets the SLA it matters what the replica does with the excess. If it only
refuses what finds no room, nearly all become late: the late shares say so. If it refuses what it
cannot answer in time, as replicas do unless they are told to serve late, it goes on to answer the
others in time, up to the capacity of its device: the overload levels say so. The late shares remain
of use: a replica whose batches take longer than it believes admits what then comes late.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError
from policy.values import check_above_0

FloatArray = NDArray[np.float64]

# Smaller late shares are errors of the quadrature.
_MIN_LATE_SHARE = 1e-10


@dataclass(frozen=True)
class LoadLatenessCurve:
    """The share of late requests of one replica, by its arrival rate.

    Attributes
    ----------
    sla_rate_per_s : float
        The highest arrival rate at which the SLA is met: requests per second, Poisson.
    late_shares : tuple of float
        Fraction of the requests that are refused or late at each of `MULTIPLES` of that rate;
        non-decreasing.
    overload_levels : tuple of float
        Fraction of the requests that are answered in time at each of `OVERLOADS` times that rate,
        by a replica that refuses what it cannot answer in time; non-increasing. Empty: it refuses
        only what finds no room.
    """

    MULTIPLES: ClassVar[tuple[float, ...]] = (
        *(0.25, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95),
        *(1.0, 1.05, 1.1, 1.2, 1.35, 1.5),
    )
    OVERLOADS: ClassVar[tuple[float, ...]] = (1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0)

    sla_rate_per_s: float
    late_shares: tuple[float, ...]
    overload_levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_above_0("sla_rate_per_s", self.sla_rate_per_s)
        shares = self.late_shares
        if len(shares) != len(self.MULTIPLES) or not all(0 <= share <= 1 for share in shares):
            raise InvalidInputError(
                f"late_shares: must be {len(self.MULTIPLES)} from 0 to 1, not {shares}"
            )
        if list(shares) != sorted(shares):
            raise InvalidInputError(f"late_shares: must not fall with the rate: {shares}")
        levels = self.overload_levels
        if len(levels) not in (0, len(self.OVERLOADS)) or not all(0 <= one <= 1 for one in levels):
            raise InvalidInputError(
                f"overload_levels: must be {len(self.OVERLOADS)} from 0 to 1, or none, not {levels}"
            )
        if list(levels) != sorted(levels, reverse=True):
            raise InvalidInputError(f"overload_levels: must not rise with the rate: {levels}")

    @cached_property
    def _log_shares(self) -> FloatArray:
        return np.asarray(np.log(np.maximum(self.late_shares, _MIN_LATE_SHARE)))

    def late_share(self, arrival_rate_per_s: float) -> float:
        """Return the fraction of the requests that are refused or late if none is refused by time.

        Between the multiples, its logarithm is interpolated. Below the first, it is that of the
        first; beyond the last, as many requests per second are in time as at the last.
        """
        multiple = arrival_rate_per_s / self.sla_rate_per_s
        last = self.MULTIPLES[-1]
        if multiple >= last:
            return 1 - (1 - self.late_shares[-1]) * last / multiple
        return math.exp(np.interp(multiple, self.MULTIPLES, self._log_shares))

    def service_level(self, arrival_rate_per_s: float) -> float:
        """Return the fraction of the requests that are answered in time.

        Between the overloads the requests per second that are in time are interpolated; beyond the
        last, they stay.
        """
        multiple = arrival_rate_per_s / self.sla_rate_per_s
        if multiple <= 1 or not self.overload_levels:
            return 1 - self.late_share(arrival_rate_per_s)
        return float(np.interp(multiple, *self._in_time)) / multiple

    @cached_property
    def _in_time(self) -> tuple[FloatArray, FloatArray]:
        """Multiples of the SLA's rate, from 1 on, and as such what is in time at each."""
        levels = (1 - self.late_share(self.sla_rate_per_s), *self.overload_levels)
        multiples = np.array((1.0, *self.OVERLOADS))
        # Only the late share of the rate itself comes from another model.
        return multiples, multiples * np.minimum.accumulate(levels)

    def replicas_needed(self, demand_per_s: float) -> int:
        return max(1, math.ceil(demand_per_s / self.sla_rate_per_s - 1e-9))
