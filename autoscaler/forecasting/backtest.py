"""Back-test forecasts on a service's own past, and choose the cheapest.

A candidate combines a point forecast b with, optionally, a recurrence r. Its demand is

    demand = max(min(b + margin · √b, cap), r, rate required now).

The margin counts standard deviations of a second's requests, as Poisson arrivals have them, because
noise is larger in proportion at a low load. The cap is a tenth above the highest rate required in
the last day: a margin on top of a peak would ask for load that has never come. A candidate misses
at a time if a higher rate is required before the horizon. The margin is a quantile, over the last
day, of (rate required - b) / √b at the times at which r and the rate required now would have
missed: it misses a share `risk` of the times. Where jumps make up more than that, the quantile is
one of the times between a jump's beginning and its height, and a margin for these covers no jump.
So margins that miss more often are tried, too. The candidate and the margin with the lowest cost
are used: the mean demand, and for each share `risk` missed beyond the first the mean rate required.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.load_history import STEP_S, LoadHistory
from autoscaler.forecasting.point_forecasts import PointForecast, trailing_max
from autoscaler.forecasting.recurring import Recurrence, expected_peaks, jump_heights

FloatArray = NDArray[np.float64]

#: Length of the past that is scored: a day.
SCORED_STEPS = 86_400 // STEP_S
#: Lower bound of a point forecast, as a share of the mean load: errors are relative to its root.
MIN_FORECAST_SHARE = 0.05
#: Share by which a demand may exceed the highest rate required in a day.
HEADROOM = 0.1
#: Shares of the times that may be missed, as multiples of the risk.
MISSED_RISKS = np.array([1.0, 1.5, 2.0, 3.0, 4.0])


@dataclass(frozen=True)
class Candidate:
    """A point forecast, optionally with jumps that recur."""

    point: PointForecast
    recurrence: Recurrence | None = None

    @property
    def name(self) -> str:
        """Its name, for people and in the stored state."""
        return self.point.name + (f" + {self.recurrence.name}" if self.recurrence else "")


@dataclass(frozen=True)
class Score:
    """A candidate, the margin of its point forecast, and the cost of both.

    The margin is in standard deviations of a second's requests; minus infinity: the point forecast
    is not needed.
    """

    candidate: Candidate
    margin: float
    cost_per_s: float


class Backtest:
    """The last day, prepared for scoring candidates."""

    def __init__(self, history: LoadHistory, steps_ahead: int) -> None:
        self._history = history
        self._rates, self._required = history.rates.values, history.required_rates.values
        self._ahead = steps_ahead
        size = self._rates.size
        self._first = max(0, size - SCORED_STEPS - steps_ahead)
        self._last = max(self._first, size - steps_ahead)
        # peak[u] is the highest rate required in the steps u+1 to u+steps_ahead.
        peak = trailing_max(self._required[self._first :], steps_ahead)[steps_ahead:]
        unknown = trailing_max(1.0 - history.known.values[self._first :], steps_ahead)[steps_ahead:]
        self._used = unknown == 0
        self._peak = peak[self._used]
        self._now = self._required[self._first : self._last][self._used]
        self._min_forecast = min_forecast_per_s(self._rates)
        self._cap = demand_cap_per_s(self._required)
        self._points: dict[str, FloatArray] = {}
        self._floors: dict[Recurrence | None, FloatArray] = {None: self._now}

    @cached_property
    def _jumps(self) -> FloatArray:
        return jump_heights(self._history)

    @property
    def steps(self) -> int:
        """The number of times at which candidates are scored."""
        return int(self._peak.size)

    def largest_rise(self, look_back_steps: int) -> float:
        """Return how far the load has risen before a horizon, at most.

        It is the highest rate required before a horizon, over the highest one in the
        `look_back_steps` before it; infinite until as many steps are known.
        """
        recent = trailing_max(self._required[self._first :], look_back_steps)
        recent = recent[: self._last - self._first][self._used][look_back_steps:]
        peak = self._peak[look_back_steps:]
        return float((peak / np.maximum(recent, 1e-9)).max()) if peak.size else math.inf

    def score(self, candidate: Candidate, risk: float) -> Score:
        """Compute the margin with which a candidate is cheapest, and its cost with that margin."""
        if not self.steps:
            return Score(candidate, 0.0, math.inf)
        floor, point = (
            self._floors_with(candidate.recurrence),
            self._point_forecasts(candidate.point),
        )
        deviation = np.sqrt(point)
        errors = np.where(self._peak > floor, (self._peak - point) / deviation, -math.inf)
        # Each margin is the least with which at most that share of the times is missed.
        missed = (MISSED_RISKS * risk * errors.size).astype(np.int64)
        ranks = np.maximum(0, errors.size - 1 - missed)
        scores = []
        for margin in np.partition(errors, ranks)[ranks].tolist():
            demand = np.maximum(np.minimum(point + margin * deviation, self._cap), floor)
            excess = max(0.0, float(np.mean(errors > margin)) / risk - 1)
            cost_per_s = float(demand.mean() + excess * self._now.mean())
            scores.append(Score(candidate, margin, cost_per_s))
        return min(scores, key=lambda score: score.cost_per_s)

    def _point_forecasts(self, point: PointForecast) -> FloatArray:
        if point.name not in self._points:
            # In service a forecast sees half an hour, so it gets no more here.
            begin = max(0, self._first - 1800 // STEP_S)
            values = point.values(self._rates[begin:], self._required[begin:], self._ahead)
            values = values[self._first - begin : self._last - begin][self._used]
            self._points[point.name] = np.maximum(values, self._min_forecast)
        return self._points[point.name]

    def _floors_with(self, recurrence: Recurrence | None) -> FloatArray:
        if recurrence not in self._floors:
            assert recurrence is not None
            peaks = expected_peaks(self._jumps, recurrence, self._ahead)[self._first : self._last]
            self._floors[recurrence] = np.maximum(self._now, peaks[self._used])
        return self._floors[recurrence]


def min_forecast_per_s(rates: FloatArray) -> float:
    """Return the lower bound of a point forecast: a small share of the last day's mean rate."""
    mean = float(rates[-SCORED_STEPS:].mean()) if rates.size else 0.0
    return max(MIN_FORECAST_SHARE * mean, 1e-9)


def demand_cap_per_s(required_rates: FloatArray) -> float:
    """Return the upper bound of a demand: a little above the last day's highest required rate."""
    return (1 + HEADROOM) * float(required_rates[-SCORED_STEPS:].max(initial=0.0))


def choose_cheapest(scores: Sequence[Score], incumbent: Candidate | None, gain: float) -> Score:
    """Choose the cheapest candidate, but leave the first or the incumbent only for a gain.

    A change must save the fraction `gain` of the cost.
    """
    best = min(scores, key=lambda score: score.cost_per_s)
    current = next((score for score in scores if score.candidate == incumbent), None)
    for preferred in (scores[0], current):
        if preferred is not None and best.cost_per_s >= (1 - gain) * preferred.cost_per_s:
            return preferred
    return best
