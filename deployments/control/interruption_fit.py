"""Follow what holds up the event loop at its work: how much of the time, when, and how long."""

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from deployments.batcher.front_counts import FrontCounts
from policy.interruptions import Interruptions, without_short

#: So many of the longest are told apart; the others count as work.
_MOST = 2048
#: Work in seconds that is told apart from none.
_LEAST_WORK_S = 1e-6


class InterruptionFit:
    """Measure interruptions, and decide when those of the profile are no longer these.

    Attributes
    ----------
    interruptions : Interruptions or None
        Those that the model uses; None until they matter.
    """

    #: Time for which interruptions count.
    MEMORY_S = 30.0
    #: Fewer interruptions, or a smaller share of the loop's time, do not matter.
    MIN_SEEN, MIN_SHARE = 100, 0.01
    #: Factor of the mean residual length that is tolerated: some seconds differ by as much.
    TOLERANCE = 1.5

    def __init__(self) -> None:
        self.interruptions: Interruptions | None = None
        # Of each tick: its duration, the loop's CPU time while it had work, the sum of the
        # interruptions as far as it counts, and each with the work before it.
        self._ticks: deque[tuple[float, float, float, NDArray[np.float64]]] = deque()
        self._duration_s = 0.0
        self._was_off = False

    def observe(self, counts: FrontCounts, foreign_share: float) -> None:
        """Record a tick.

        Parameters
        ----------
        counts : FrontCounts
        foreign_share : float
            Fraction of the interruptions that the model does not know as work already.
        """
        held_up_s = foreign_share * sum(counts.interruptions_s)
        recorded_s = np.array([counts.interruptions_s, counts.work_before_s], dtype=np.float64)
        self._ticks.append((counts.duration_s, counts.working_cpu_s, held_up_s, recorded_s))
        self._duration_s += counts.duration_s
        while self._duration_s > self.MEMORY_S and len(self._ticks) > 1:
            self._duration_s -= self._ticks.popleft()[0]

    def report(self) -> dict[str, float]:
        """Return how much the loop was held up of late, and for how long at a time."""
        lengths_s, _ = self._recorded_s()
        if lengths_s.size < self.MIN_SEEN:
            return {"share": 0.0, "mean_ms": 0.0, "longest_ms": 0.0}
        return {
            "share": self._share(),
            "mean_ms": 1e3 * float(lengths_s.mean()),
            "longest_ms": 1e3 * float(lengths_s.max()),
        }

    def _recorded_s(self) -> NDArray[np.float64]:
        """Return the interruptions and the work before each, shape (2, interruptions)."""
        return np.hstack([np.zeros((2, 0)), *(tick[3] for tick in self._ticks)])

    def _share(self) -> float:
        held_up_s = sum(tick[2] for tick in self._ticks)
        worked_s = sum(tick[1] for tick in self._ticks)
        return held_up_s / (held_up_s + worked_s) if held_up_s else 0.0

    def measured(self) -> Interruptions | None:
        """Return the interruptions of late; None if they do not matter."""
        lengths_s, work_s = self._recorded_s()
        share = self._share()
        if lengths_s.size < self.MIN_SEEN or share < self.MIN_SHARE:
            return None
        if lengths_s.size > _MOST:
            least_s, all_s = float(np.partition(lengths_s, -_MOST)[-_MOST]), lengths_s.sum()
            lengths_s, work_s = without_short(lengths_s, work_s, least_s)
            share *= float(lengths_s.sum() / all_s)
        times_s = np.maximum([lengths_s, work_s], _LEAST_WORK_S)
        lengths_ms, work_ms = two_digits(1e3 * times_s).tolist()
        return Interruptions(float(f"{min(share, 0.99):.2g}"), tuple(lengths_ms), tuple(work_ms))

    def revise(self, noticeable_ms: float = 0.0) -> bool:
        """Return whether `interruptions` changed: two calls in a row must find them wrong.

        Parameters
        ----------
        noticeable_ms : float
            Nothing changes while the mean residual lengths, before and now, are shorter.
        """
        measured = self.measured()
        now_ms, before_ms = (
            0.0 if each is None else each.mean_residual_ms
            for each in (measured, self.interruptions)
        )
        is_off = not math.isclose(now_ms, before_ms, abs_tol=1e-6) and (
            max(now_ms, before_ms) > max(noticeable_ms, self.TOLERANCE * min(now_ms, before_ms))
        )
        if not is_off or not self._was_off:
            self._was_off = is_off
            return False
        self._was_off = False
        self.interruptions = measured
        return True


def two_digits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values above 0 to two significant digits, in the same shape."""
    powers = 10.0 ** (np.floor(np.log10(values)) - 1)
    return np.asarray(np.round(values / powers) * powers)
