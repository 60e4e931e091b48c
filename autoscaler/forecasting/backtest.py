"""Back-test forecasts on a service's own past, and choose the cheapest.

A candidate combines a point forecast b with, optionally, a recurrence r. Its demand is

    demand = max(min(b + margin · √b, cap), r, rate required now).

The margin counts standard deviations of a second's requests, as Poisson arrivals have them, because
noise is larger in proportion at a low load. The cap is a tenth above the highest rate required in
the last day: a margin on top of a peak would ask for load that has never come.

A fleet is then ordered as the autoscaler would have done it: in whole replicas, and for as long as
the scale-down delay holds them. What could be served is the least that was ordered in the start
time before. So a candidate is judged by what the SLA counts, the one-minute windows: one is missed
if too large a share of its requests exceeds what could be served. The margins tried are quantiles
of (rate required until the horizon - b) / √b at the times at which r and the rate required now
would not do. The candidate and the margin with the lowest cost are used: the mean of what was
ordered, and for each share `risk` of the windows missed beyond the first, half of the mean load. So
no margin is kept for jumps that it would not cover.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.load_history import STEP_S, WINDOW_S, LoadHistory
from autoscaler.forecasting.point_forecasts import PointForecast, trailing_max
from autoscaler.forecasting.recurring import Recurrence, expected_peaks, jump_heights

FloatArray = NDArray[np.float64]

#: Length of the past that is scored: a day.
SCORED_STEPS = 86_400 // STEP_S
#: Lower bound of a point forecast, as a share of the mean load: errors are relative to its root.
MIN_FORECAST_SHARE = 0.05
#: Share by which a demand may exceed the highest rate required in a day.
HEADROOM = 0.1
#: Shares of the times that the margins tried miss, as multiples of the risk.
_MISSED_RISKS = np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0])
#: Cost of missing a further share `risk` of the windows, as a multiple of the mean load.
MISS_COST = 0.5
_WINDOW_STEPS = WINDOW_S // STEP_S


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
    """The last day, prepared for scoring candidates.

    Replicas serve `steps_ahead` after their order; if that is less than one step, only this share
    of a step's requests is lost. Each serves `replica_per_s` within the SLA (0: orders are not
    rounded to whole replicas), and demands hold them for `hold_steps` more.
    """

    def __init__(
        self,
        history: LoadHistory,
        steps_ahead: float,
        replica_per_s: float = 0.0,
        hold_steps: int = 0,
    ) -> None:
        self._history = history
        self._rates, self._required = history.rates.values, history.required_rates.values
        self._lost_share, steps_ahead = min(1.0, steps_ahead), max(1, math.ceil(steps_ahead))
        self.steps_ahead, self._replica_per_s, self._hold = steps_ahead, replica_per_s, hold_steps
        size = self._rates.size
        self._first = max(0, size - SCORED_STEPS - steps_ahead)
        windows = max(0, size - self._first - steps_ahead) // _WINDOW_STEPS
        self._window_rates = self._by_window(self._rates, windows)
        self._window_required = self._by_window(self._required, windows)[:, -1]
        unknown = trailing_max(1.0 - history.known.values, steps_ahead + _WINDOW_STEPS)
        self._known = self._by_window(unknown, windows)[:, -1] == 0
        self._used = unknown[self._first + steps_ahead :] == 0
        self._now = self._required[self._first :]
        # peak[u] is the highest rate required in the steps u+1 to u+steps_ahead.
        self._peak = trailing_max(self._now, steps_ahead)[steps_ahead:]
        self._min_forecast = min_forecast_per_s(self._rates)
        self._cap = demand_cap_per_s(self._required)
        self._points: dict[str, FloatArray] = {}
        self._floors: dict[Recurrence | None, FloatArray] = {None: self._now}

    @staticmethod
    def _by_window(series: FloatArray, windows: int) -> FloatArray:
        """Return the newest values of a series by window and step."""
        return series[series.size - windows * _WINDOW_STEPS :].reshape(windows, _WINDOW_STEPS)

    @cached_property
    def _jumps(self) -> FloatArray:
        return jump_heights(self._history)

    @property
    def steps(self) -> int:
        """The number of steps in the windows that candidates are judged by."""
        return _WINDOW_STEPS * int(self._known.sum())

    def score(self, candidate: Candidate, risk: float) -> Score:
        """Compute the margin with which a candidate is cheapest, and its cost with that margin."""
        if not self.steps:
            return Score(candidate, 0.0, math.inf)
        floor = self._floors_with(candidate.recurrence)
        point = self._point_forecasts(candidate.point)
        deviation = np.sqrt(point)
        size = self._peak.size
        errors = np.where(
            self._peak > floor[:size], (self._peak - point[:size]) / deviation[:size], -math.inf
        )[self._used]
        missed = (_MISSED_RISKS * risk * errors.size).astype(np.int64)
        ranks = np.maximum(0, errors.size - 1 - missed)
        scores = []
        for margin in sorted(set(np.partition(errors, ranks)[ranks].tolist())):
            demand = np.maximum(np.minimum(point + margin * deviation, self._cap), floor)
            ordered = self._ordered(demand)
            excess = max(0.0, self._missed_share(ordered) / risk - 1)
            cost_per_s = float(ordered.mean() + MISS_COST * excess * self._now.mean())
            scores.append(Score(candidate, margin, cost_per_s))
            if not excess:
                break  # a larger margin only costs more
        return min(scores, key=lambda score: score.cost_per_s)

    def _ordered(self, demand: FloatArray) -> FloatArray:
        """Return the rate within the SLA of the replicas that a demand orders."""
        held = trailing_max(demand, self._hold + 1)
        if not self._replica_per_s:
            return held
        return self._replica_per_s * np.ceil(held / self._replica_per_s)

    def _missed_share(self, ordered: FloatArray) -> float:
        """Return the share of the one-minute windows for which too little was ordered in time.

        In a window whose requests come evenly, the mean rates of its steps show no excess where its
        seconds do. Such a window is missed if it requires more than was ever served in it.
        """
        least = -trailing_max(-ordered, self.steps_ahead)
        served = self._by_window(least[:-1], self._known.size)
        # A start shorter than a step serves within the step of its order.
        best = served if self._lost_share == 1 else self._by_window(ordered, self._known.size)
        unserved = self._lost_share * np.maximum(0.0, self._window_rates - served).sum(axis=1)
        allowed = self._history.unserved_share * self._window_rates.sum(axis=1)
        missed = (unserved > allowed) | (best.max(axis=1) < self._window_required)
        return float(missed[self._known].mean())

    def _point_forecasts(self, point: PointForecast) -> FloatArray:
        if point.name not in self._points:
            # In service a forecast sees half an hour, so it gets no more here.
            begin = max(0, self._first - 1800 // STEP_S)
            values = point.values(self._rates[begin:], self._required[begin:], self.steps_ahead)
            values = values[self._first - begin :]
            self._points[point.name] = np.maximum(values, self._min_forecast)
        return self._points[point.name]

    def _floors_with(self, recurrence: Recurrence | None) -> FloatArray:
        if recurrence not in self._floors:
            assert recurrence is not None
            peaks = expected_peaks(self._jumps, recurrence, self.steps_ahead)[self._first :]
            self._floors[recurrence] = np.maximum(self._now, peaks)
        return self._floors[recurrence]


def min_forecast_per_s(rates: FloatArray) -> float:
    """Return the lower bound of a point forecast: a small share of the last day's mean rate."""
    mean = float(rates[-SCORED_STEPS:].mean()) if rates.size else 0.0
    return max(MIN_FORECAST_SHARE * mean, 1e-9)


def demand_cap_per_s(required_rates: FloatArray, headroom: float = HEADROOM) -> float:
    """Return the upper bound of a demand: a little above the last day's highest required rate."""
    return (1 + headroom) * float(required_rates[-SCORED_STEPS:].max(initial=0.0))


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
