r"""Arrivals that come in bursts: how much more than the mean rate to reckon with.

Poisson arrivals have as much variance as mean in any window: their index of dispersion,
:math:`I = \mathrm{Var}\,N / \mathrm E\,N`, is 1. Where the rate itself moves between
:math:`\lambda - \sigma` and :math:`\lambda + \sigma`, more slowly than the window :math:`t` is
long, :math:`I = 1 + \sigma^2 t / \lambda`; so the dispersion of counts, which is easily measured
live, tells the rate of a burst: :math:`\lambda + \sqrt{(I - 1)\,\lambda / t}`. A window that a
jump falls into sees less of it, so that :math:`\sigma` comes out low, by a tenth where the rate
stays for five windows; a margin of a fifth makes up for that and for chance.

Source of the index: Cox, Lewis, "The Statistical Analysis of Series of Events" (1966), section 4.5.
"""

import math

from policy.errors import InvalidInputError

_MARGIN = 1.2


class DispersionMeter:
    """The mean and the index of dispersion of counts in successive windows of equal length.

    Parameters
    ----------
    memory : float
        Windows after which a count has lost all but 1/e of its weight; at least 2.

    Raises
    ------
    InvalidInputError
        `memory` is below 2.
    """

    def __init__(self, memory: float = 200.0) -> None:
        if not memory >= 2:
            raise InvalidInputError(f"memory: must be at least 2 windows, not {memory:g}")
        self._keep = math.exp(-1 / memory)
        self._weight = 0.0
        self._weight_of_squares = 0.0
        self._mean = 0.0
        self._squares = 0.0

    def observe(self, count: float) -> None:
        """Take in the arrivals of one more window."""
        self._weight = self._keep * self._weight + 1
        self._weight_of_squares = self._keep**2 * self._weight_of_squares + 1
        self._squares *= self._keep
        away = count - self._mean
        self._mean += away / self._weight
        self._squares += away * (count - self._mean)

    @property
    def mean(self) -> float:
        """Mean count of a window; 0 before the first."""
        return self._mean

    @property
    def index(self) -> float:
        """Variance over mean; 1, as of Poisson arrivals, while nothing is known."""
        freedom = self._weight - self._weight_of_squares / self._weight if self._weight else 0.0
        if freedom < 0.5 or self._mean <= 0:
            return 1.0
        return self._squares / freedom / self._mean


def burst_rate_per_s(
    arrival_rate_per_s: float, index_of_dispersion: float, window_s: float
) -> float:
    """Rate of the bursts in arrivals of a mean rate and a dispersion.

    Parameters
    ----------
    arrival_rate_per_s : float
    index_of_dispersion : float
        Of the counts in windows; up to 1 there are no bursts.
    window_s : float
        Length of the windows, above 0.

    Returns
    -------
    float
        At least `arrival_rate_per_s`; at most twice that, where the lulls between bursts are empty.

    Raises
    ------
    InvalidInputError
        `window_s` is not above 0, or another number is negative.
    """
    if not window_s > 0:
        raise InvalidInputError(f"window: must be above 0 s, not {window_s:g}")
    if not (arrival_rate_per_s >= 0 and index_of_dispersion >= 0):
        raise InvalidInputError("arrival rate, index of dispersion: must not be negative")
    excess = max(index_of_dispersion - 1, 0.0)
    return arrival_rate_per_s + min(
        _MARGIN * math.sqrt(excess * arrival_rate_per_s / window_s), arrival_rate_per_s
    )
