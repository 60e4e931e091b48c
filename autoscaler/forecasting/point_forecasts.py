"""Point forecasts of the load, each for all times of a history at once.

A point forecast takes a series of steps of `STEP_S` seconds, oldest first, and gives at each step
what it would have said at the step's end, from that step and those before it alone. So one call
back-tests it over a day, and the last value of the same call is its forecast now. None of them
holds a margin: `autoscaler.forecasting.backtest` measures what each needs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from autoscaler.forecasting.load_history import STEP_S

FloatArray = NDArray[np.float64]

#: Steps of the mean that is called the last value.
_LAST_STEPS = 6
_LEVEL_WEIGHT = 0.3
_TREND_WEIGHT = 0.05


@dataclass(frozen=True)
class PointForecast:
    """One way to look ahead.

    Attributes
    ----------
    name : str
    values : callable
        ``values(rates, needs, steps_ahead)``: mean rates and required rates by step, and the
        horizon in steps; gives the forecasts, of the same shape.
    """

    name: str
    values: Callable[[FloatArray, FloatArray, int], FloatArray]


def trailing_max(series: FloatArray, steps: int) -> FloatArray:
    """Highest of the last `steps` values up to each; of fewer at the beginning."""
    highest, covered = series.copy(), 1
    while covered < min(steps, series.size):
        shift = min(covered, steps - covered)
        np.maximum(highest[shift:], highest[:-shift].copy(), out=highest[shift:])
        covered += shift
    return highest


def trailing_mean(series: FloatArray, steps: int) -> FloatArray:
    """Mean of the last `steps` values up to each; of fewer at the beginning."""
    sums = np.cumsum(series)
    means = sums.copy()
    means[steps:] -= sums[:-steps]
    return means / np.minimum(np.arange(1, series.size + 1), steps)


def last_value(rates: FloatArray, needs: FloatArray, steps_ahead: int) -> FloatArray:
    """Expect what is: the mean of the last minute."""
    return trailing_mean(rates, _LAST_STEPS)


def linear_trend(rates: FloatArray, needs: FloatArray, steps_ahead: int) -> FloatArray:
    """Draw a straight line through the recent rates on to the horizon (Swayam, section 4.2).

    It is fitted by least squares to the last minute, or the horizon where that is longer. A rise
    counts as far as it is certain: the slope less two standard errors, since a line drawn on
    multiplies the noise of its slope by the horizon. A fall is not anticipated.
    """
    n = max(_LAST_STEPS, steps_ahead)
    last = last_value(rates, needs, steps_ahead)
    if rates.size <= n:
        return last
    times = np.arange(n) - (n - 1) / 2
    spread = float(times @ times)
    centred = rates - rates.mean()
    mean = np.convolve(centred, np.full(n, 1 / n))[: rates.size]
    slope = np.convolve(centred, times[::-1] / spread)[: rates.size]
    squares = np.convolve(centred**2, np.ones(n))[: rates.size]
    residual = np.maximum(squares - n * mean**2 - spread * slope**2, 0.0)
    error = np.sqrt(residual / (n - 2) / spread)
    certain = np.maximum(slope - 2 * error, 0.0)
    ahead = mean + rates.mean() + certain * ((n - 1) / 2 + steps_ahead)
    ahead[: n - 1] = 0.0
    return np.where(certain > 0, np.maximum(last, ahead), last)


def holt(rates: FloatArray, needs: FloatArray, steps_ahead: int) -> FloatArray:
    """Smooth level and trend exponentially, and draw them on to the horizon (Holt).

    With weights a (level) and b (trend), l = a·x + (1-a)(l' + t') and t = b·(l-l') + (1-b)·t',
    where ' is the step before. Both are linear in x, so they are second-order filters of it.
    """
    if rates.size < 2:
        return rates.copy()
    a, b = _LEVEL_WEIGHT, _TREND_WEIGHT
    # Eliminate t: (1 - (2-a-ab)z + (1-a)z²)·l = (a - a(1-b)z)·x, and t = b(1-z)/(1-(1-b)z)·l.
    denominator = np.array([1.0, -(2 - a - a * b), 1 - a])
    start = float(rates[0])
    shifted = rates - start  # so that it starts at rest
    level = lfilter(np.array([a, -a * (1 - b)]), denominator, shifted)
    trend = lfilter(np.array([a * b, -a * b]), denominator, shifted)
    ahead: FloatArray = start + level + np.maximum(trend, 0.0) * steps_ahead
    return np.maximum(ahead, 0.0)


def _peak_of(minutes: int) -> PointForecast:
    steps = minutes * 60 // STEP_S

    def values(rates: FloatArray, needs: FloatArray, steps_ahead: int) -> FloatArray:
        return trailing_max(needs, steps)

    return PointForecast(f"peak {minutes} min", values)


LAST = PointForecast("last", last_value)
LINEAR = PointForecast("linear", linear_trend)
HOLT = PointForecast("holt", holt)
#: Highest required rate of the last minutes. None looks back farther than the seconds are kept.
PEAKS = tuple(_peak_of(minutes) for minutes in (1, 2, 5, 15, 30))
