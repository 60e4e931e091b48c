"""Which forecast costs least on a service's own past, each with the margin that it needs there.

A candidate is a point forecast b and, or not, a recurrence r. It asks for

    demand = max(min(margin · b, ceiling), r, what is needed now)

with the ceiling a tenth above all that was required in that day, since a margin on top of a peak
would ask for what never was. It misses at a time if a required rate until the horizon is higher.
Back-tested over the last day, its margin is the least with which it misses a share `risk` of the
times: the quantile of the ratio of what was needed to b, over the times at which r alone would
have missed. At that margin all
candidates cover equally, so the lowest mean demand is the lowest cost.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.load_history import STEP_S, LoadHistory
from autoscaler.forecasting.point_forecasts import PointForecast, trailing_max
from autoscaler.forecasting.recurring import Recurrence, Rounds

FloatArray = NDArray[np.float64]

#: The past that counts: a day.
SCORED_STEPS = 86_400 // STEP_S
#: A point forecast is taken for no less than this share of the mean load, as ratios to 0 are none.
LEAST_SHARE = 0.05
#: Share by which a day's highest may be exceeded.
HEADROOM = 0.1


@dataclass(frozen=True)
class Candidate:
    """A point forecast, and perhaps peaks that come back."""

    point: PointForecast
    recurrence: Recurrence | None = None

    @property
    def name(self) -> str:
        """For people, and to find it again in a stored state."""
        return self.point.name + (f" + {self.recurrence.name}" if self.recurrence else "")


@dataclass(frozen=True)
class Score:
    """How a candidate did.

    Attributes
    ----------
    candidate : Candidate
    margin : float
        Factor on its point forecast.
    cost_per_s : float
        Mean demand.
    """

    candidate: Candidate
    margin: float
    cost_per_s: float


class Backtest:
    """The last day, prepared for scoring candidates.

    Parameters
    ----------
    history : LoadHistory
    steps_ahead : int
        The horizon in steps.
    """

    def __init__(self, history: LoadHistory, steps_ahead: int) -> None:
        self._rates, self._needs = history.rates.values, history.needs.values
        self._ahead = steps_ahead
        size = self._rates.size
        self._first = max(0, size - SCORED_STEPS - steps_ahead)
        self._last = max(self._first, size - steps_ahead)
        # peak[u] is the highest need of the steps u+1 to u+steps_ahead.
        peak = trailing_max(self._needs[self._first :], steps_ahead)[steps_ahead:]
        unknown = trailing_max(1.0 - history.known.values[self._first :], steps_ahead)[steps_ahead:]
        self._used = unknown == 0
        self._peak = peak[self._used]
        self._now = self._needs[self._first : self._last][self._used]
        self._least = least_forecast(self._rates)
        self._ceiling = ceiling(self._needs)
        self.rounds = Rounds(self._rates, self._needs, steps_ahead)
        self._points: dict[str, FloatArray] = {}
        self._floors: dict[Recurrence | None, FloatArray] = {None: self._now}

    @property
    def steps(self) -> int:
        """Times at which candidates are scored."""
        return int(self._peak.size)

    def score(self, candidate: Candidate, risk: float) -> Score:
        """Find the margin that a candidate needs, and what it costs with it."""
        floor, point = self._floor(candidate.recurrence), self._point(candidate.point)
        ratios = np.where(self._peak > floor, self._peak / point, 0.0)
        margin = _upper_quantile(ratios, risk)
        demand = np.maximum(np.minimum(margin * point, self._ceiling), floor)
        return Score(candidate, margin, float(demand.mean()) if demand.size else math.inf)

    def scores(self, candidates: Sequence[Candidate], risk: float) -> list[Score]:
        """Score candidates; the order is kept."""
        return [self.score(candidate, risk) for candidate in candidates]

    def _point(self, point: PointForecast) -> FloatArray:
        if point.name not in self._points:
            # Half an hour before the first is as much as a forecast sees in service.
            begin = max(0, self._first - 1800 // STEP_S)
            values = point.values(self._rates[begin:], self._needs[begin:], self._ahead)
            values = values[self._first - begin : self._last - begin][self._used]
            self._points[point.name] = np.maximum(values, self._least)
        return self._points[point.name]

    def _floor(self, recurrence: Recurrence | None) -> FloatArray:
        if recurrence not in self._floors:
            assert recurrence is not None
            floors = self.rounds.floors(recurrence, self._first)[: self._last - self._first]
            self._floors[recurrence] = np.maximum(self._now, floors[self._used])
        return self._floors[recurrence]


def least_forecast(rates: FloatArray) -> float:
    """Give what every point forecast is raised to: a small share of the mean load."""
    mean = float(rates[-SCORED_STEPS:].mean()) if rates.size else 0.0
    return max(LEAST_SHARE * mean, 1e-9)


def ceiling(needs: FloatArray) -> float:
    """Give what no forecast asks for more than: a little above all that was required in a day."""
    return (1 + HEADROOM) * float(needs[-SCORED_STEPS:].max(initial=0.0))


def cheapest(scores: Sequence[Score], incumbent: Candidate | None, gain: float) -> Score:
    """Choose the cheapest, but leave the first, or the incumbent, only for a gain.

    Parameters
    ----------
    scores : sequence of Score
        The first is preferred to all that do not gain on it.
    incumbent : Candidate or None
        The one in use.
    gain : float
        Share of the cost that a change must save.
    """
    best = min(scores, key=lambda score: score.cost_per_s)
    standing = next((score for score in scores if score.candidate == incumbent), None)
    for preferred in (scores[0], standing):
        if preferred is not None and best.cost_per_s >= (1 - gain) * preferred.cost_per_s:
            return preferred
    return best


def _upper_quantile(values: FloatArray, risk: float) -> float:
    """Least value that at most a share `risk` of the values exceeds."""
    if not values.size:
        return 1.0
    rank = values.size - 1 - math.floor(risk * values.size)
    return float(np.partition(values, rank)[rank]) if rank >= 0 else 0.0
