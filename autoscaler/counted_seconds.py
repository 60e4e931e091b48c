"""Tries, refusals and retries by the second, over the last ten minutes, in ring buffers.

Some replicas may serve without a report. With random routing they have the same share of the load
as the others, so what is reported is multiplied by the replicas that should report and divided by
those that do.
"""

import math
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_SECONDS = 600
#: Replicas that may seem to be missing from a second, because they report at any time within it.
_MISSING_BY_ROUNDING = 0.5
#: Longer time spans are added to the ring buffers by numpy.
_SHORT_SPAN_S = 8


class _Ring:
    """A value for each second, in memory that is seen in two ways.

    Attributes
    ----------
    one : array of float
        For single seconds, which numpy takes three times as long to read and write.
    all : ndarray of float, shape (_SECONDS,)
        For many seconds at once.
    """

    __slots__ = ("all", "one")

    def __init__(self) -> None:
        self.one = array("d", bytes(8 * _SECONDS))
        self.all: FloatArray = np.frombuffer(self.one)


class CountedSeconds:
    """Tries, refusals, and the replicas whose reports cover each second.

    Attributes
    ----------
    head : int
        The newest second: the time from `head` to `head` + 1.
    """

    def __init__(self) -> None:
        self.head = 0
        # Second s is at s modulo the length.
        self._attempts = _Ring()
        self._refusals = _Ring()
        self._finals = _Ring()
        # Replicas whose reports cover a second, and replicas that should report then.
        self._covered = _Ring()
        self._expected = _Ring()

    @property
    def oldest(self) -> int:
        """The oldest second that is kept."""
        return self.head - _SECONDS + 1

    def advance(self, head: int) -> None:
        """Make room up to a second; the oldest ones are forgotten."""
        if head <= self.head:
            return
        new = np.arange(max(self.head + 1, head - _SECONDS + 1), head + 1) % _SECONDS
        rings = (self._attempts, self._refusals, self._finals, self._covered, self._expected)
        for ring in rings:
            ring.all[new] = 0.0
        self.head = head

    def expect(self, second: int, replicas: int, revised_s: int) -> None:
        """Note how many replicas should report a second, and at most the `revised_s` before it."""
        self.advance(second)
        if second >= self.oldest:
            self._expected.one[second % _SECONDS] = replicas
        expected = self._expected.one
        for earlier in range(second - revised_s, second):
            index = earlier % _SECONDS
            if expected[index] > replicas:
                expected[index] = replicas

    def spread(
        self,
        since_s: float,
        until_s: float,
        attempts: float,
        refusals: float,
        oldest: int,
        finals: float = 0.0,
    ) -> None:
        """Add the counts of a replica evenly over a time span.

        Parameters
        ----------
        since_s, until_s : float
            The span; `until_s` is at most the end of the second `head`.
        attempts, refusals : float
        oldest : int
            What falls before this second is dropped.
        finals : float
            Those of the refusals that were not to be tried elsewhere.
        """
        last = math.floor(until_s)
        first = max(math.floor(since_s), oldest, self.head - _SECONDS + 1)
        share_per_s = 1 / (until_s - since_s)
        if last - first > _SHORT_SPAN_S:
            seconds = np.arange(first, last + 1)
            covered = np.minimum(until_s, seconds + 1) - np.maximum(since_s, seconds)
            indices = seconds % _SECONDS
            self._covered.all[indices] += covered
            self._attempts.all[indices] += share_per_s * attempts * covered
            self._refusals.all[indices] += share_per_s * refusals * covered
            self._finals.all[indices] += share_per_s * finals * covered
            return
        for second in range(first, last + 1):
            begin_s = since_s if since_s > second else second
            end_s = until_s if until_s < second + 1 else second + 1
            covered_s = end_s - begin_s
            if covered_s:
                share = share_per_s * covered_s
                index = second % _SECONDS
                self._covered.one[index] += covered_s
                self._attempts.one[index] += share * attempts
                if refusals:
                    self._refusals.one[index] += share * refusals
                    self._finals.one[index] += share * finals

    def between(
        self, begin: int, end: int
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return tries and refusals by the second, with the share of replicas without a report.

        Returns
        -------
        attempts, refusals, replicas, finals : ndarray of float, shape (end - begin,)
            Replicas that took the tries, each for the part of the second that it served; finals
            are those of the refusals that were not to be tried elsewhere.
        """
        indices = np.arange(begin, end) % _SECONDS
        attempts, refusals = self._attempts.all[indices], self._refusals.all[indices]
        finals = self._finals.all[indices]
        covered, expected = self._covered.all[indices], self._expected.all[indices]
        missing = (expected - covered > _MISSING_BY_ROUNDING) & (covered > 0)
        if missing.any():
            factor = np.where(missing, expected / np.maximum(covered, _MISSING_BY_ROUNDING), 1.0)
            attempts, refusals, covered = factor * attempts, factor * refusals, factor * covered
            finals = factor * finals
        return attempts, refusals, covered, finals

    def state_dict(self) -> dict[str, Any]:
        """Return tries and refusals as plain numbers and lists; coverage starts anew."""
        indices = np.arange(self.oldest, self.head + 1) % _SECONDS
        return {
            "head": self.head,
            "attempts": self._attempts.all[indices].tolist(),
            "refusals": self._refusals.all[indices].tolist(),
            "finals": self._finals.all[indices].tolist(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "CountedSeconds":
        """Make one from what `state_dict` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            The state does not have this form.
        """
        counted = cls()
        counted.head = int(state["head"])
        indices = np.arange(counted.oldest, counted.head + 1) % _SECONDS
        rings = {"attempts": counted._attempts, "refusals": counted._refusals}
        for name, ring in {**rings, "finals": counted._finals}.items():
            if name == "finals" and name not in state:  # saved by an earlier version
                continue
            counts = np.asarray(state[name], dtype=np.float64)
            if counts.shape != ring.all.shape:
                raise ValueError(f"{name}: {counts.size} seconds, not {ring.all.size}")
            ring.all[indices] = counts
        return counted
