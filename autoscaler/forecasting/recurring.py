"""A calendar of jumps: hourly batch jobs, broadcasts at half past, daily and weekly routines.

If the load jumps within seconds, no trend predicts it, but a jump that came at the same time of
earlier hours, days or weeks does. Only jumps count: rises that a fleet sized for the load just
before could not have followed. Slower rises are left to the forecasts.

For each period (a quarter of an hour up to a week) and each ten seconds of it, the calendar keeps
in what share of the past rounds a jump came then, give or take half a minute. Recent rounds weigh
more: a week ago counts half, 28 days ago a sixteenth. So months are remembered in bounded memory,
and a routine that has ended is forgotten. The periods divide one another, which allows for one
estimate from all of them: the share of the rounds of a longer period, which are few, is shrunk
towards that of the next shorter period (the posterior mean of a binomial share under a beta prior).
A jump at half past every other hour is thus known after a few hours, that it does not come on
Sundays after a few weeks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.load_history import (
    KEPT_STEPS,
    STEP_S,
    LoadHistory,
    RecentValues,
    pack_values,
    unpack_values,
)
from autoscaler.forecasting.point_forecasts import trailing_max, trailing_mean

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: The periods, in steps, each a multiple of the one before: 15 and 30 minutes, 1 and 2 hours, a day
#: and a week.
PERIODS = tuple(seconds // STEP_S for seconds in (900, 1800, 3600, 7200, 86_400, 604_800))
_DAY_STEPS = 86_400 // STEP_S
#: A round this long ago counts half.
HALF_LIFE_STEPS = 7 * _DAY_STEPS
#: Tolerance in the time of a jump, in steps: jumps are not exactly on time.
JITTER_STEPS = 3
#: Rounds that the share of the next shorter period counts for.
_PRIOR_ROUNDS = 4.0
#: Rounds with a jump that the height by the next shorter period counts for.
_PRIOR_JUMPS = 1.0
#: A jump raises the mean load by this factor within two steps, and the required rate by the other
#: within three. The margin of the point forecast covers smaller rises.
_MIN_RISE, _MIN_JUMP = 1.4, 1.5
#: The load before a jump counts as at least this share of the day's mean.
_MIN_BEFORE = 0.05
#: A jump's height is the highest required rate in the two minutes from it, and a further rise
#: within that time is the same jump.
_JUMP_STEPS = 12
#: Steps until it is known whether a jump came at a step, give or take the jitter.
_LAG_STEPS = _JUMP_STEPS + JITTER_STEPS
#: Steps before a step that tell whether it has a jump.
_LOOK_BACK_STEPS = _JUMP_STEPS + JITTER_STEPS + 8
#: Steps that are learned together: fewer than the shortest period has, less the lag.
_CHUNK_STEPS = 60
_LOWEST_SHARE = 0.05


@dataclass(frozen=True)
class Recurrence:
    """From which share of the past rounds on a jump is expected again.

    Attributes
    ----------
    min_share : float
        In (0, 1). A lower one covers more jumps, and pays more often for one that does not come.
    headroom : float
        Factor on the mean height of the past jumps.
    """

    min_share: float
    headroom: float = 1.0

    @property
    def name(self) -> str:
        """Its name, for people and in the stored state."""
        return f"jumps that came {self.min_share:.0%} of the time"


#: The recurrences that are tried. Where a jump often comes, it pays to cover a high one, too.
RECURRENCES = (Recurrence(0.4, 1.15), *map(Recurrence, (0.2, 0.1, _LOWEST_SHARE)))


class JumpCalendar:
    """When the load has jumped so far, and what to expect of the time ahead.

    Heights are relative to the mean load of the day before, so they grow with the service.

    Attributes
    ----------
    shares, heights : RecentValues
        What was expected of each step of the last two days just before it: the share of the rounds
        with a jump, and its height. Shares too low for any of `RECURRENCES` are 0.
    """

    def __init__(self) -> None:
        self.shares = RecentValues(KEPT_STEPS)
        self.heights = RecentValues(KEPT_STEPS)
        self._next_step: int | None = None
        self._periods = np.array(PERIODS)[:, None]
        self._offsets = np.cumsum((0, *PERIODS[:-1]))[:, None]
        self._keep = 0.5 ** (self._periods / HALF_LIFE_STEPS)
        # By period and phase, decaying: rounds seen, those with a jump, sum of the jumps' heights.
        self._tables = np.zeros((3, sum(PERIODS)), np.float32)

    def advance(self, history: LoadHistory) -> None:
        """Learn the steps that a history has gained since the last call.

        The history must not have gained more than it keeps.
        """
        if history.end_s is None:
            return
        end = history.end_s // STEP_S
        first = end - history.rates.values.size
        begin = first if self._next_step is None else max(first, self._next_step)
        while begin < end:
            until = min(end, begin + _CHUNK_STEPS)
            shares, heights = self.expected(np.arange(begin, until))
            for share, height in zip(shares.tolist(), heights.tolist(), strict=True):
                self.shares.append(share)
                self.heights.append(height)
            self._learn(history, first, begin - _LAG_STEPS, until - _LAG_STEPS)
            begin = self._next_step = until

    def expected(self, steps: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return what to expect of some steps, numbered from the beginning of the clock.

        Parameters
        ----------
        steps : ndarray of int, shape (n,)

        Returns
        -------
        shares : ndarray of float, shape (n,)
            Share of the rounds with a jump at that time.
        heights : ndarray of float, shape (n,)
            The highest rate to be required after the jump, over the mean load of a day.
        """
        cells = self._offsets + steps % self._periods
        rounds, jumps, sums = self._tables[:, cells].astype(np.float64)
        share = height = np.zeros(steps.size)
        for period in range(len(PERIODS)):
            share = (jumps[period] + _PRIOR_ROUNDS * share) / (rounds[period] + _PRIOR_ROUNDS)
            prior = np.where(height > 0, _PRIOR_JUMPS, 1e-9)
            height = (sums[period] + prior * height) / (jumps[period] + prior)
        return np.where(share >= _LOWEST_SHARE, share, 0.0), height

    def expected_peak(
        self, history: LoadHistory, recurrence: Recurrence, steps_ahead: int
    ) -> float:
        """Return the rate that jumps expected before the horizon will require, per second.

        Parameters
        ----------
        history : LoadHistory
        recurrence : Recurrence
        steps_ahead : int
            The horizon, in steps.

        Returns
        -------
        float
            0 if no jump is expected.
        """
        assert history.end_s is not None
        end = history.end_s // STEP_S
        shares, heights = self.expected(np.arange(end, end + steps_ahead + 1))
        highest = float(heights[shares >= recurrence.min_share].max(initial=0.0))
        highest *= recurrence.headroom
        return highest * float(history.rates.values[-_DAY_STEPS:].mean()) if highest else 0.0

    def expected_peaks(
        self, history: LoadHistory, recurrence: Recurrence, steps_ahead: int
    ) -> FloatArray:
        """Return what `expected_peak` would have returned after each step of a history.

        Returns
        -------
        ndarray of float, shape (steps,)
            Entries whose horizon is not over are too low.
        """
        rates = history.rates.values
        expected = np.zeros(rates.size)
        shares, heights = self.shares.values, self.heights.values
        known = min(rates.size, shares.size)
        if known:
            shares, heights = shares[-known:], heights[-known:]
            is_expected = shares >= recurrence.min_share
            expected[-known:] = np.where(is_expected, recurrence.headroom * heights, 0.0)
        ahead = np.zeros_like(expected)
        reach = steps_ahead + 1
        ahead[:-reach] = trailing_max(expected, reach)[reach:]
        return ahead * trailing_mean(rates, _DAY_STEPS)

    def _learn(self, history: LoadHistory, first: int, begin: int, end: int) -> None:
        """Count the steps from `begin` to `end`; `first` is the first one of the history."""
        begin = max(begin, first)
        if end <= begin:
            return
        origin = max(first, begin - _LOOK_BACK_STEPS)
        seen = slice(origin - first, end + _LAG_STEPS - first)
        rates, required = history.rates.values[seen], history.required_rates.values[seen]
        day_mean = max(1e-9, float(history.rates.values[: seen.stop][-_DAY_STEPS:].mean()))
        highest = _max_ahead(required, _JUMP_STEPS)
        least = _MIN_BEFORE * day_mean
        before = np.maximum(_previous(trailing_mean(rates, 6)), least)
        required_before = np.maximum(_previous(required), least)
        rises = (_max_ahead(rates, 1) >= _MIN_RISE * before) & (
            _max_ahead(required, 2) >= _MIN_JUMP * required_before
        )
        earlier = _previous(trailing_max(rises.astype(np.float64), _JUMP_STEPS))
        onsets = np.where(rises & (earlier == 0), highest / day_mean, 0.0)
        known = history.known.values[seen]
        around = _max_ahead(trailing_max(onsets, JITTER_STEPS + 1), JITTER_STEPS)
        sure = 1.0 - _max_ahead(trailing_max(1.0 - known, 8 + JITTER_STEPS), _LAG_STEPS)
        learned = slice(begin - origin, end - origin)
        known_steps = np.flatnonzero(sure[learned] > 0)
        if known_steps.size:
            cells = self._offsets + (begin + known_steps) % self._periods
            heights = around[learned][known_steps]
            ones = np.ones(known_steps.size)
            counted: FloatArray = np.stack((ones, np.where(heights > 0, 1.0, 0.0), heights))
            before_it: FloatArray = self._tables[:, cells].astype(np.float64)
            self._tables[:, cells] = self._keep * before_it + counted[:, None]

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy the calendar at once, and return a function that packs the copy for `load_state`."""
        tables = self._tables.copy()
        series = self.shares.values.copy(), self.heights.values.copy()
        next_step = self._next_step

        def packed() -> dict[str, Any]:
            # Heights that no recurrence asks for need not be kept.
            shares, heights = series
            return {
                "next_step": next_step,
                "tables": [pack_values(table) for table in tables],
                "shares": pack_values(shares),
                "heights": pack_values(np.where(shares > 0, heights, 0.0)),
            }

        return packed

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "JumpCalendar":
        """Make a calendar from what the function of a `snapshot` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            The state does not have this form.
        """
        calendar = cls()
        tables = np.stack([unpack_values(table) for table in state["tables"]])
        if tables.shape != calendar._tables.shape:
            raise ValueError("tables: must have one value per period and step")
        calendar._tables[:] = tables
        calendar.shares.replace(unpack_values(state["shares"]))
        calendar.heights.replace(unpack_values(state["heights"]))
        next_step = state["next_step"]
        calendar._next_step = None if next_step is None else int(next_step)
        return calendar


def _max_ahead(series: FloatArray, steps: int) -> FloatArray:
    """Return the maximum of each value and the `steps` after it; of fewer at the end."""
    reversed_maximum = trailing_max(series[::-1].copy(), steps + 1)
    return reversed_maximum[::-1]


def _previous(series: FloatArray) -> FloatArray:
    """Return a series one step later; the first value stays."""
    return np.concatenate((series[:1], series[:-1]))
