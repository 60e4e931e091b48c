"""Forecasts of the arrival rate: the highest to expect until a replica ordered now has started.

A forecast is one object with one method, `Forecaster.peak_per_s`, and has a name in `FORECASTERS`;
a further one needs no change anywhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class RateHistory:
    """What has arrived of late.

    Attributes
    ----------
    current_per_s : float
        Mean rate over the rate window, which ends at the latest time known.
    step_s : float
        Length of a step of `rates_per_s`.
    rates_per_s : ndarray of float, shape (steps,)
        Mean rate of each step, oldest first; the last step ends where the rate window does.
    """

    current_per_s: float
    step_s: float
    rates_per_s: NDArray[np.float64]


class Forecaster(Protocol):
    """Looks ahead."""

    def peak_per_s(self, history: RateHistory, horizon_s: float) -> float:
        """Give the highest rate to expect from now until `horizon_s` from now."""


@dataclass(frozen=True)
class LastValue:
    """The rate stays what it is: the mean over the rate window.

    The mean, and not the highest of its seconds: the response-time model expects the mean rate of
    Poisson arrivals and accounts for their ups and downs itself, so the highest of m noisy seconds
    would count them twice. Slower ups and downs are the scale-in hold's, which keeps the highest
    forecast of its time.
    """

    def peak_per_s(self, history: RateHistory, horizon_s: float) -> float:
        """Give the current rate."""
        return history.current_per_s


@dataclass(frozen=True)
class LinearTrend:
    """A straight line through the recent rates, drawn on to the horizon (Swayam, section 4.2).

    A rise counts as far as it is certain: the slope less `certainty` standard errors, since a line
    drawn on multiplies the noise of its slope by the horizon. A fall is not anticipated: the peak
    until the horizon is then now.

    Attributes
    ----------
    fit_s : float
        The line is fitted to this long, or to the horizon where that is longer.
    certainty : float
        Standard errors taken off the slope.
    """

    fit_s: float = 60.0
    certainty: float = 2.0

    def peak_per_s(self, history: RateHistory, horizon_s: float) -> float:
        """Give the line's value at the horizon, but no less than the current rate."""
        steps = int(max(self.fit_s, horizon_s) / history.step_s)
        rates = history.rates_per_s[-steps:]
        if rates.size < 10:
            return history.current_per_s
        times = history.step_s * np.arange(rates.size)
        times -= times.mean()
        spread = float(times @ times)
        slope = float(times @ rates) / spread
        residual = rates - rates.mean() - slope * times
        error = float(np.sqrt(residual @ residual / (rates.size - 2) / spread))
        certain = max(0.0, slope - self.certainty * error)
        at_horizon = float(rates.mean()) + certain * (float(times[-1]) + horizon_s)
        return max(history.current_per_s, at_horizon) if certain else history.current_per_s


#: By the names that the setting `forecast` takes. The order is what travels: append only.
FORECASTERS: Mapping[str, Forecaster] = MappingProxyType(
    {"last": LastValue(), "linear": LinearTrend()}
)
