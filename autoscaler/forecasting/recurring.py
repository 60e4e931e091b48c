"""Peaks that come back by the clock: batch jobs on the hour, programmes at half past, the day.

Where the load jumps within a second, no trend foresees it; that it jumped at this time of the last
hours or days does. What counts is the jump: the rise that a fleet of the size of that moment could
not have followed. Once its time is over by 20 s, nothing is held for it any more.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.load_history import STEP_S
from autoscaler.forecasting.point_forecasts import trailing_max, trailing_mean

FloatArray = NDArray[np.float64]

#: Recurrences need not be on the second.
JITTER_STEPS = 2
#: The load that what came is in proportion to: the mean of a quarter of an hour.
SLOW_STEPS = 900 // STEP_S
#: A smaller rise within the horizon is for the margin: it may be noise.
_LEAST_JUMP = 1.5
#: Proportions beyond are no guide.
_MOST_CHANGE = 4.0
#: It may come back somewhat higher.
_GROWTH = 1.2


@dataclass(frozen=True)
class Recurrence:
    """A period, and in how many of its last rounds a jump must have come to be expected again.

    Attributes
    ----------
    period_s : int
        A multiple of `STEP_S`.
    rounds : int
    times : int
        1 or 2. Twice is proof against what came by chance, and takes longer to learn.
    """

    period_s: int
    rounds: int
    times: int = 1

    @property
    def name(self) -> str:
        """For people."""
        minutes = self.period_s // 60
        period = f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"
        rounds = f"{self.times} of {self.rounds} x " if self.rounds > 1 else ""
        return f"{rounds}{period}"


#: From a quarter of an hour to a day.
RECURRENCES = (
    Recurrence(900, 4),
    Recurrence(1800, 8),
    Recurrence(3600, 4),
    Recurrence(3600, 24, 2),
    Recurrence(7200, 4),
    Recurrence(7200, 12, 2),
    Recurrence(86_400, 1),
)


class Rounds:
    """The long history, prepared for looking back by any period.

    Parameters
    ----------
    rates, needs : ndarray of float, shape (steps,)
        Mean and required rates by step, oldest first.
    steps_ahead : int
        The horizon.
    """

    def __init__(self, rates: FloatArray, needs: FloatArray, steps_ahead: int) -> None:
        self._ahead = steps_ahead
        self._slow = trailing_mean(rates, SLOW_STEPS)
        # Entries near the end are too low, as the horizon is not over: nobody looks at those.
        peaks = _from_ahead(trailing_max(needs, steps_ahead), steps_ahead)
        jumps = np.where(peaks >= _LEAST_JUMP * needs, _GROWTH * peaks, 0.0)
        self._jumps = _from_ahead(trailing_max(jumps, 2 * JITTER_STEPS + 1), JITTER_STEPS)

    def floors(self, recurrence: Recurrence, first: int) -> FloatArray:
        """Give what came back by then, for each step from `first` on; 0 where nothing did.

        Returns
        -------
        ndarray of float, shape (steps - first,)
        """
        size = self._slow.size
        floors, highest = np.zeros(size - first), np.zeros(size - first)
        period = recurrence.period_s // STEP_S
        if not self._is_past(period):
            return floors
        for back in range(period, recurrence.rounds * period + 1, period):
            begin = max(first, back)
            if begin >= size:
                break
            then = slice(begin - back, size - back)
            came = self._came(then, self._slow[begin:])
            if recurrence.times == 2:
                second = np.minimum(highest[begin - first :], came)
                np.maximum(floors[begin - first :], second, out=floors[begin - first :])
            np.maximum(highest[begin - first :], came, out=highest[begin - first :])
        return floors if recurrence.times == 2 else highest

    def floor_later(self, recurrence: Recurrence, steps: int, slow_per_s: float) -> float:
        """Give the same for a time a few steps after the end of the history.

        Parameters
        ----------
        recurrence : Recurrence
        steps : int
            How many; 0 is the end itself.
        slow_per_s : float
            Mean rate of the last quarter of an hour, then.
        """
        period = recurrence.period_s // STEP_S
        if not self._is_past(period - steps):
            return 0.0
        now = self._slow.size - 1 + steps
        floors = [0.0, 0.0]
        for index in range(now - period, now - recurrence.rounds * period - 1, -period):
            if index < 0:
                break
            then = slice(index, index + 1)
            came = self._came(then, np.array([slow_per_s]))
            floors.append(float(came[0]))
        return sorted(floors)[-recurrence.times]

    def _is_past(self, steps: int) -> bool:
        return steps > self._ahead + JITTER_STEPS

    def _came(self, then: slice, slow: FloatArray) -> FloatArray:
        slow_then = self._slow[then]
        change = np.divide(slow, slow_then, out=np.ones_like(slow), where=slow_then > 0)
        np.clip(change, 1 / _MOST_CHANGE, _MOST_CHANGE, out=change)
        came: FloatArray = change * self._jumps[then]
        return came


def _from_ahead(series: FloatArray, steps: int) -> FloatArray:
    """Move a series back by some steps; its last value fills up."""
    moved = np.empty_like(series)
    moved[: max(0, series.size - steps)] = series[steps:]
    moved[max(0, series.size - steps) :] = series[-1] if series.size else 0.0
    return moved
