r"""Arrivals that come in bursts: the rate of the bursts, from the dispersion of counts.

The number of Poisson arrivals in a window has a variance equal to its mean: the index of
dispersion, :math:`I = \mathrm{Var}\,N / \mathrm E\,N`, is 1. If the rate itself switches between
:math:`\lambda - \sigma` and :math:`\lambda + \sigma`, and stays for much longer than a window
:math:`t`, :math:`I = 1 + \sigma^2 t / \lambda`. So the dispersion of counts, which is easily
measured live, tells the rate of a burst: :math:`\lambda + \sqrt{(I - 1)\,\lambda / t}`. A window in
which the rate switches shows less of it, so :math:`\sigma` is underestimated, by a tenth if the
rate stays for five windows; a margin of a fifth covers that and chance.

Source of the index: Cox, Lewis, "The Statistical Analysis of Series of Events" (1966), section 4.5.
"""

import math

from policy.values import check_above_0, check_at_least

#: Length of the windows in which a replica counts arrivals. It must be short against the bursts: if
#: the rate stays for half a second, windows of 1 s show 0.61 of its swing, windows of 0.1 s 0.94.
COUNT_WINDOW_S = 0.1
_MARGIN = 1.2


class DispersionMeter:
    """Estimates the mean and the index of dispersion of counts in successive equal windows.

    After `memory` windows, at least 2, a count keeps 1/e of its weight.
    """

    def __init__(self, memory: float = 200.0) -> None:
        check_at_least(2, "memory in windows", memory)
        self._keep = math.exp(-1 / memory)
        self._weight = 0.0
        self._weight_of_squares = 0.0
        self._mean = 0.0
        self._squares = 0.0

    def observe(self, count: float) -> None:
        self._weight = self._keep * self._weight + 1
        self._weight_of_squares = self._keep**2 * self._weight_of_squares + 1
        self._squares *= self._keep
        deviation = count - self._mean
        self._mean += deviation / self._weight
        self._squares += deviation * (count - self._mean)

    @property
    def mean(self) -> float:
        """Mean count per window; 0 before the first."""
        return self._mean

    @property
    def index(self) -> float:
        """Variance over mean; 1, as of Poisson arrivals, until there is enough to tell."""
        weight = self._weight
        degrees_of_freedom = weight - self._weight_of_squares / weight if weight else 0.0
        if degrees_of_freedom < 0.5 or self._mean <= 0:
            return 1.0
        return self._squares / degrees_of_freedom / self._mean


def burst_rate_per_s(
    arrival_rate_per_s: float, index_of_dispersion: float, window_s: float
) -> float:
    """Return the rate of the bursts, from the mean rate and the dispersion of counts.

    It is at most twice the mean rate, at which the lulls between bursts are empty.
    """
    check_above_0("window_s", window_s)
    check_at_least(0, "arrival_rate_per_s", arrival_rate_per_s)
    check_at_least(0, "index_of_dispersion", index_of_dispersion)
    excess = max(index_of_dispersion - 1, 0.0)
    return arrival_rate_per_s + min(
        _MARGIN * math.sqrt(excess * arrival_rate_per_s / window_s), arrival_rate_per_s
    )
