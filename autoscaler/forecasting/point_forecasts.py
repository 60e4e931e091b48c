"""Point forecasts of the load, computed for every time of a history in one call.

A point forecast takes series by steps of `STEP_S` seconds, oldest first. For each step it returns
what it would have predicted at the end of that step, from that step and earlier ones alone. So one
call back-tests it over a day, and the last value of the same call is its forecast now. A point
forecast has no safety margin: `autoscaler.forecasting.backtest` measures the margin it needs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.load_history import STEP_S

FloatArray = NDArray[np.float64]

#: Length of the mean that serves as the last value: a minute.
_LAST_STEPS = 6


@dataclass(frozen=True)
class PointForecast:
    """A method of forecasting the load.

    ``values(rates, required_rates, steps_ahead)`` takes the mean and the required rates by step,
    both of shape (steps,) in requests per second, and returns the forecasts, of the same shape.
    """

    name: str
    values: Callable[[FloatArray, FloatArray, int], FloatArray]


def trailing_max(series: FloatArray, steps: int) -> FloatArray:
    """Return the maximum of the last `steps` values at each step; of fewer at the beginning."""
    highest, covered = series.copy(), 1
    while covered < min(steps, series.size):
        shift = min(covered, steps - covered)
        np.maximum(highest[shift:], highest[:-shift].copy(), out=highest[shift:])
        covered += shift
    return highest


def trailing_mean(series: FloatArray, steps: int) -> FloatArray:
    """Return the mean of the last `steps` values at each step; of fewer at the beginning."""
    sums = np.cumsum(series)
    means = sums.copy()
    means[steps:] -= sums[:-steps]
    return means / np.minimum(np.arange(1, series.size + 1), steps)


def last_value(rates: FloatArray, required_rates: FloatArray, steps_ahead: int) -> FloatArray:
    return trailing_mean(rates, _LAST_STEPS)


def linear_trend(rates: FloatArray, required_rates: FloatArray, steps_ahead: int) -> FloatArray:
    """Extrapolate a straight line through the recent rates to the horizon (Swayam, section 4.2).

    The line is fitted by least squares to the last minute, or to as much as the horizon if that is
    longer. The slope counts only as far as it is certain, less two standard errors, because
    extrapolation multiplies its noise by the horizon. A fall is not extrapolated.
    """
    n = max(_LAST_STEPS, steps_ahead)
    last = last_value(rates, required_rates, steps_ahead)
    if rates.size <= n:
        return last
    times = np.arange(n) - (n - 1) / 2
    spread = float(times @ times)
    centered = rates - rates.mean()
    mean = np.convolve(centered, np.full(n, 1 / n))[: rates.size]
    slope = np.convolve(centered, times[::-1] / spread)[: rates.size]
    squares = np.convolve(centered**2, np.ones(n))[: rates.size]
    residual = np.maximum(squares - n * mean**2 - spread * slope**2, 0.0)
    error = np.sqrt(residual / (n - 2) / spread)
    certain = np.maximum(slope - 2 * error, 0.0)
    ahead = mean + rates.mean() + certain * ((n - 1) / 2 + steps_ahead)
    ahead[: n - 1] = 0.0
    return np.where(certain > 0, np.maximum(last, ahead), last)


def _peak_of(minutes: int) -> PointForecast:
    steps = minutes * 60 // STEP_S

    def values(rates: FloatArray, required_rates: FloatArray, steps_ahead: int) -> FloatArray:
        return trailing_max(required_rates, steps)

    return PointForecast(f"peak {minutes} min", values)


LAST = PointForecast("last", last_value)
LINEAR = PointForecast("linear", linear_trend)
#: The highest required rate of the last minutes, at most as many as the history by the second.
PEAKS = tuple(_peak_of(minutes) for minutes in (1, 2, 5, 15, 30))
