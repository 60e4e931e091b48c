"""Peaks that come back by the clock: batch jobs on the hour, programmes at half past, the day.

Where the load jumps within a second, no trend foresees it; that it jumped at this time of the last
hours or days does. The forecast is what it took then, until the horizon and half a minute around
it, in proportion to how the load of the last quarter of an hour has changed since.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.load_history import STEP_S
from autoscaler.point_forecasts import trailing_max, trailing_mean

FloatArray = NDArray[np.float64]

#: Recurrences need not be on the second.
JITTER_STEPS = 3
_SLOW_STEPS = 900 // STEP_S
_MOST_CHANGE = 4.0


@dataclass(frozen=True)
class Recurrence:
    """A period, and how many of its last rounds are looked at; the highest of them counts.

    Attributes
    ----------
    period_s : int
        A multiple of `STEP_S`.
    rounds : int
    """

    period_s: int
    rounds: int

    @property
    def name(self) -> str:
        """For people."""
        minutes = self.period_s // 60
        period = f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"
        return f"last {self.rounds} x {period}" if self.rounds > 1 else f"last {period}"


#: From a quarter of an hour to a day.
RECURRENCES = tuple(
    Recurrence(period_s, rounds)
    for period_s, rounds in (
        (900, 4),
        (1800, 4),
        (1800, 8),
        (3600, 1),
        (3600, 4),
        (7200, 2),
        (7200, 4),
        (86_400, 1),
    )
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
        self._slow = trailing_mean(rates, _SLOW_STEPS)
        self._ahead = steps_ahead + JITTER_STEPS
        # Highest of the steps from JITTER_STEPS before to the horizon and JITTER_STEPS after.
        self._highest = trailing_max(needs, steps_ahead + 2 * JITTER_STEPS + 1)

    def floors(self, recurrence: Recurrence, first: int) -> FloatArray:
        """Give what came back by then, for each step from `first` on; 0 where it is not known.

        Returns
        -------
        ndarray of float, shape (steps - first,)
        """
        size = self._slow.size
        floors = np.zeros(size - first)
        period = recurrence.period_s // STEP_S
        if period <= self._ahead:
            return floors  # the round before would still be in the future
        for back in range(period, recurrence.rounds * period + 1, period):
            begin = max(first, back)
            if begin >= size:
                break
            then = self._highest[begin - back + self._ahead : size - back + self._ahead]
            slow_then = self._slow[begin - back : size - back]
            slow_now = self._slow[begin:]
            change = np.divide(
                slow_now, slow_then, out=np.full_like(slow_now, _MOST_CHANGE), where=slow_then > 0
            )
            np.clip(change, 1 / _MOST_CHANGE, _MOST_CHANGE, out=change)
            np.maximum(floors[begin - first :], then * change, out=floors[begin - first :])
        return floors
