"""Follow what holds up the event loop at its work: how much of the time, and in what lengths."""

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from deployments.batcher.front_counts import FrontCounts
from policy.interruptions import Interruptions

#: Lengths that stand for all those seen.
_LENGTHS = 256


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
        # Of each tick: its duration, the loop's CPU time while it had work, interruptions, and how
        # much of their sum counts.
        self._ticks: deque[tuple[float, float, NDArray[np.float64], float]] = deque()
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
        lengths_s = np.array(counts.interruptions_s, dtype=np.float64)
        held_up_s = foreign_share * float(lengths_s.sum())
        self._ticks.append((counts.duration_s, counts.working_cpu_s, lengths_s, held_up_s))
        self._duration_s += counts.duration_s
        while self._duration_s > self.MEMORY_S and len(self._ticks) > 1:
            self._duration_s -= self._ticks.popleft()[0]

    def measured(self) -> Interruptions | None:
        """Return the interruptions of late; None if they do not matter."""
        lengths_s = np.concatenate([np.zeros(0), *(tick[2] for tick in self._ticks)])
        if lengths_s.size < self.MIN_SEEN:
            return None
        held_up_s = sum(tick[3] for tick in self._ticks)
        share = held_up_s / (held_up_s + sum(tick[1] for tick in self._ticks))
        if share < self.MIN_SHARE:
            return None
        # Each stands for as many of them: the mean of those next to each other in length.
        edges = np.linspace(0, lengths_s.size, min(_LENGTHS, lengths_s.size) + 1).astype(int)
        sums_ms = np.add.reduceat(np.sort(1e3 * lengths_s), edges[:-1])
        means_ms = two_digits(sums_ms / np.diff(edges))
        return Interruptions(float(f"{min(share, 0.99):.2g}"), tuple(means_ms.tolist()))

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
