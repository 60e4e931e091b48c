"""Peaks that recur by the clock: hourly batch jobs, broadcasts at half past, daily routines.

If the load jumps within a second, no trend predicts it, but a jump at the same time of the last
hours or days does. Only jumps count: rises that a fleet sized for the load just before could not
have followed. Twenty seconds after its time, a jump is no longer expected.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.load_history import STEP_S
from autoscaler.forecasting.point_forecasts import trailing_max, trailing_mean

FloatArray = NDArray[np.float64]

#: Tolerance in the time of a recurrence, in steps: peaks are not exactly on time.
JITTER_STEPS = 2
#: Length of the mean load that scales a recurring peak: a quarter of an hour.
SLOW_STEPS = 900 // STEP_S
#: The least ratio of a jump; the margin of the point forecast covers smaller rises.
_MIN_JUMP = 1.5
#: Limit on the ratio by which the change of the mean load scales a peak.
_MAX_SCALE = 4.0
#: A peak may recur somewhat higher.
_GROWTH = 1.2


@dataclass(frozen=True)
class Recurrence:
    """A period, and how often a jump must have come in its last cycles to be expected again.

    Attributes
    ----------
    period_s : int
        A multiple of `STEP_S`.
    cycles : int
        The number of past periods to look at.
    times : int
        In how many of them the jump must have come: 1 or 2. Requiring 2 rules out chance, but takes
        longer to learn.
    """

    period_s: int
    cycles: int
    times: int = 1

    @property
    def name(self) -> str:
        """Its name, for people and in the stored state."""
        minutes = self.period_s // 60
        period = f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"
        count = f"{self.times} of {self.cycles} x " if self.cycles > 1 else ""
        return f"{count}{period}"


#: The recurrences that are tried, from a quarter of an hour to a day.
RECURRENCES = (
    Recurrence(900, 4),
    Recurrence(1800, 8),
    Recurrence(3600, 4),
    Recurrence(3600, 24, 2),
    Recurrence(7200, 4),
    Recurrence(7200, 12, 2),
    Recurrence(86_400, 1),
)


class RecurringPeaks:
    """The jumps in a history, prepared for looking back by any period.

    Parameters
    ----------
    rates, required_rates : ndarray of float, shape (steps,)
        Mean and required rates by step, in requests per second, oldest first.
    steps_ahead : int
        The horizon, in steps.
    """

    def __init__(self, rates: FloatArray, required_rates: FloatArray, steps_ahead: int) -> None:
        self._ahead = steps_ahead
        self._slow = trailing_mean(rates, SLOW_STEPS)
        # Entries near the end are too low, because their horizon is not over; they are not used.
        peaks = _shifted_back(trailing_max(required_rates, steps_ahead), steps_ahead)
        jumps = np.where(peaks >= _MIN_JUMP * required_rates, _GROWTH * peaks, 0.0)
        self._jumps = _shifted_back(trailing_max(jumps, 2 * JITTER_STEPS + 1), JITTER_STEPS)

    def expected_peaks(self, recurrence: Recurrence, first: int) -> FloatArray:
        """Return the peak to expect before the horizon, at each step of the history from `first`.

        Parameters
        ----------
        recurrence : Recurrence
        first : int
            Index of a step.

        Returns
        -------
        ndarray of float, shape (steps - first,)
            Requests per second; 0 if no peak is expected.
        """
        size = self._slow.size
        second_highest, highest = np.zeros(size - first), np.zeros(size - first)
        period = recurrence.period_s // STEP_S
        if not self._is_over(period):
            return highest
        for back in range(period, recurrence.cycles * period + 1, period):
            begin = max(first, back)
            if begin >= size:
                break
            then = slice(begin - back, size - back)
            jumps = self._scaled_jumps(then, self._slow[begin:])
            if recurrence.times == 2:
                lower = np.minimum(highest[begin - first :], jumps)
                np.maximum(
                    second_highest[begin - first :], lower, out=second_highest[begin - first :]
                )
            np.maximum(highest[begin - first :], jumps, out=highest[begin - first :])
        return second_highest if recurrence.times == 2 else highest

    def expected_peak_after(self, recurrence: Recurrence, steps: int, slow_per_s: float) -> float:
        """Return the peak to expect before the horizon, a few steps after the end of the history.

        Parameters
        ----------
        recurrence : Recurrence
        steps : int
            Steps after the last one of the history.
        slow_per_s : float
            Mean rate of the last quarter of an hour at that time.

        Returns
        -------
        float
            Requests per second; 0 if no peak is expected.
        """
        period = recurrence.period_s // STEP_S
        if not self._is_over(period - steps):
            return 0.0
        now = self._slow.size - 1 + steps
        peaks = [0.0, 0.0]
        for index in range(now - period, now - recurrence.cycles * period - 1, -period):
            if index < 0:
                break
            then = slice(index, index + 1)
            jumps = self._scaled_jumps(then, np.array([slow_per_s]))
            peaks.append(float(jumps[0]))
        return sorted(peaks)[-recurrence.times]

    def _is_over(self, steps: int) -> bool:
        """Return whether the horizon of a time that many steps back is over."""
        return steps > self._ahead + JITTER_STEPS

    def _scaled_jumps(self, then: slice, slow: FloatArray) -> FloatArray:
        """Return the jumps of the past steps `then`, in proportion to the mean load `slow` now."""
        slow_then = self._slow[then]
        change = np.divide(slow, slow_then, out=np.ones_like(slow), where=slow_then > 0)
        np.clip(change, 1 / _MAX_SCALE, _MAX_SCALE, out=change)
        scaled: FloatArray = change * self._jumps[then]
        return scaled


def _shifted_back(series: FloatArray, steps: int) -> FloatArray:
    """Return a series moved back by some steps, and its last value repeated at the end."""
    moved = np.empty_like(series)
    moved[: max(0, series.size - steps)] = series[steps:]
    moved[max(0, series.size - steps) :] = series[-1] if series.size else 0.0
    return moved
