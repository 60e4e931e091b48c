"""What each simulated replica knows of the others' refusals, as HAProxy would tell it.

It is `deployments.haproxy.other_replicas` for a whole fleet at once. Both engines look once a
second; a live replica that is asked much looks more often.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deployments.haproxy.other_replicas import MEMORY_S, MIN_TRIES

FloatArray = NDArray[np.float64]

LOOK_EVERY_S = 1.0


class RefusalsSeen:
    """Turn the counters of the replicas into the share that the others of each refuse."""

    def __init__(self) -> None:
        self._looked_s = 0.0
        #: By slot: tries sent and refused, at the last look, and as they count now.
        self._before = np.zeros((0, 2))
        self._counted = np.zeros((0, 2))

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time to look."""
        return math.isfinite(now_s) and now_s >= self._looked_s + LOOK_EVERY_S

    def added(self, slot: int) -> None:
        """Forget what was in a slot: its counters begin at 0."""
        self._reserve(slot)
        self._before[slot] = self._counted[slot] = 0.0

    def look(
        self, now_s: float, slots: Sequence[int], tries: Sequence[tuple[int, int]]
    ) -> FloatArray:
        """Return the share that the others of each replica refuse, 0 to 1, shape (slots,).

        Parameters
        ----------
        now_s : float
        slots : sequence of int
            The replicas that HAProxy knows.
        tries : sequence of (int, int)
            Of each: the tries that reached it so far, and those that it refused.
        """
        keep = math.exp(-(now_s - self._looked_s) / MEMORY_S)
        self._looked_s = now_s
        self._counted *= keep
        if not slots:
            return np.zeros(0)
        at, now = np.array(slots), np.array(tries, np.float64)
        self._counted[at] += now - self._before[at]
        self._before[at] = now
        sent, refused = (self._counted.sum(axis=0) - self._counted[at]).T
        known = sent >= MIN_TRIES
        return np.where(known, np.clip(refused / np.where(known, sent, 1.0), 0.0, 1.0), 0.0)

    def _reserve(self, slot: int) -> None:
        more = slot + 1 - self._before.shape[0]
        if more > 0:
            self._before = np.concatenate([self._before, np.zeros((more, 2))])
            self._counted = np.concatenate([self._counted, np.zeros((more, 2))])
