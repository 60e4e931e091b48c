"""Jumps that recur: hourly batch jobs, broadcasts at half past, daily routines.

If the load jumps within seconds, no trend predicts it, but a jump that came at the same time of
earlier hours or days does. Only jumps count: rises that a fleet sized for the load just before
could not have followed. A recurrence expects a jump at a time of its period if one came then, give
or take half a minute, in at least a given share of the past rounds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.load_history import STEP_S, LoadHistory
from autoscaler.forecasting.point_forecasts import trailing_max, trailing_mean

FloatArray = NDArray[np.float64]

#: Tolerance in the time of a jump, in steps: jumps are not exactly on time.
JITTER_STEPS = 3
#: A jump raises the mean load by this factor within two steps, and the required rate by the other
#: within three. The margin of the point forecast covers smaller rises.
_MIN_RISE, _MIN_JUMP = 1.4, 1.5
#: The load before a jump counts as at least this share of the day's mean.
_MIN_BEFORE = 0.05
#: A jump's height is the highest required rate in the two minutes from it, and a further rise
#: within that time is the same jump.
_JUMP_STEPS = 12
_DAY_STEPS = 86_400 // STEP_S


@dataclass(frozen=True)
class Recurrence:
    """Expect the jumps that came in at least a share of the past rounds of a period.

    A lower share covers more jumps, and pays more often for one that does not come.
    """

    period_s: int
    min_share: float

    @property
    def name(self) -> str:
        """Its name, in the reasons of decisions and in the stored state."""
        return f"jumps of {self.min_share:.0%} of the {self.period_s // 3600}-hour rounds"


#: The recurrences that are tried.
RECURRENCES = (
    *(Recurrence(7_200, share) for share in (0.4, 0.2, 0.1, 0.05)),
    *(Recurrence(period_s, 0.4) for period_s in (3_600, 86_400)),
)


def jump_heights(history: LoadHistory) -> FloatArray:
    """Return by step the rate required after a jump that began then; 0 where none did.

    The height at a step is final two minutes later.
    """
    rates, required = history.rates.values, history.required_rates.values
    if not rates.size:
        return np.zeros(0)
    least = _MIN_BEFORE * max(1e-9, float(rates[-_DAY_STEPS:].mean()))
    before = np.maximum(_previous(trailing_mean(rates, 6)), least)
    required_before = np.maximum(_previous(required), least)
    rises = (_max_ahead(rates, 1) >= _MIN_RISE * before) & (
        _max_ahead(required, 2) >= _MIN_JUMP * required_before
    )
    earlier = _previous(trailing_max(rises.astype(np.float64), _JUMP_STEPS))
    return np.where(rises & (earlier == 0), _max_ahead(required, _JUMP_STEPS), 0.0)


def expected_peaks(heights: FloatArray, recurrence: Recurrence, steps_ahead: int) -> FloatArray:
    """Return the rate that recurring jumps require within a horizon, as expected after each step.

    It is 0 where no jump is expected, and no entry depends on later steps. Heights are
    `jump_heights`.
    """
    size, period = heights.size, recurrence.period_s // STEP_S
    highest = trailing_max(heights, steps_ahead + 2 * JITTER_STEPS + 1)
    reach = steps_ahead + JITTER_STEPS
    rounds = np.zeros(size)
    jumps, sums = np.zeros(size), np.zeros(size)
    # The newest round must be over by a jump's length, so that its height is known.
    first = -(-(reach + _JUMP_STEPS) // period) * period
    for back in range(first, size, period):
        then = highest[max(0, reach - back) : size - back + reach]
        now = slice(size - then.size, size)
        rounds[now] += 1
        jumps[now] += then > 0
        sums[now] += then
    is_expected = (jumps >= recurrence.min_share * rounds) & (jumps > 0)
    return np.where(is_expected, sums / np.maximum(jumps, 1), 0.0)


def _max_ahead(series: FloatArray, steps: int) -> FloatArray:
    """Return the maximum of each value and the `steps` after it; of fewer at the end."""
    return trailing_max(series[::-1].copy(), steps + 1)[::-1]


def _previous(series: FloatArray) -> FloatArray:
    """Return a series one step later; the first value stays."""
    return np.concatenate((series[:1], series[:-1]))
