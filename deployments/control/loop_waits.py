"""How busy a replica's event loop is, and what it waits for while it works.

The loop is slower than its CPU time if it waits: for the interpreter's lock, while a batch holds
it, or for a CPU that other processes use. The first wait is at most as long as the process's other
threads ran, so at least the rest tells that the cores are shared; the kernel's own account of the
thread's waits for a CPU can tell of more.
"""

import math
from dataclasses import dataclass

import numpy as np

from deployments.batcher.front_meter import FrontCounts

#: Time after which a second's waits count for 1/e.
_MEMORY_S = 10.0
#: Least utilization of a loop that is said to be held up, and share of its work that it waits.
_MIN_UTILIZATION, _FOREIGN_SHARE = 0.2, 1 / 3
#: A loop that gets less of a CPU than this allows is not slow but stopped.
_MAX_SLOWDOWN = 100.0


@dataclass(frozen=True)
class LoopState:
    """How busy an event loop is, over the last seconds.

    Attributes
    ----------
    utilization : float
        Fraction of the time for which the loop had work.
    slowdown : float
        Wall time over CPU time of that work, at least 1.
    foreign_slowdown : float
        The same, but without waiting for the process's own threads.
    foreign_wait_share : float
        Fraction of that work's wall time for which the loop waited for a CPU that other processes
        used.
    foreign_share : float
        Fraction of the waits in that work that are not for the process's own threads.
    lag_s : float
        The longest that the loop kept anything waiting in the last tick.
    """

    utilization: float = 0.0
    slowdown: float = 1.0
    foreign_slowdown: float = 1.0
    foreign_wait_share: float = 0.0
    foreign_share: float = 1.0
    lag_s: float = 0.0

    @property
    def shares_cores(self) -> bool:
        """Whether the loop is held up mainly by other processes on its cores."""
        return self.utilization >= _MIN_UTILIZATION and self.foreign_wait_share >= _FOREIGN_SHARE


class LoopWaits:
    """Track the state of an event loop.

    Attributes
    ----------
    state : LoopState
    """

    def __init__(self) -> None:
        self.state = LoopState()
        self._sums_s = np.zeros(4)  # duration, busy time, its CPU time, foreign wait

    def observe(self, counts: FrontCounts) -> None:
        """Record what the loop did in a tick."""
        wait_s = counts.busy_s - counts.busy_cpu_s
        foreign_s = max(0.0, wait_s - counts.other_cpu_s)
        if counts.cpu_wait_s is not None:
            foreign_s = max(foreign_s, min(wait_s, counts.cpu_wait_s))
        self._sums_s *= math.exp(-counts.duration_s / _MEMORY_S)
        self._sums_s += (counts.duration_s, counts.busy_s, counts.busy_cpu_s, foreign_s)
        duration_s, busy_s, busy_cpu_s, foreign_s = self._sums_s.tolist()
        self.state = LoopState(
            utilization=min(1.0, busy_s / duration_s) if duration_s else 0.0,
            slowdown=_slowdown(busy_s, busy_cpu_s),
            foreign_slowdown=_slowdown(busy_cpu_s + foreign_s, busy_cpu_s),
            foreign_wait_share=foreign_s / busy_s if busy_s else 0.0,
            foreign_share=min(1.0, foreign_s / (busy_s - busy_cpu_s))
            if busy_s > busy_cpu_s
            else 1.0,
            lag_s=counts.longest_lag_s,
        )


def _slowdown(wall_s: float, cpu_s: float) -> float:
    if wall_s >= _MAX_SLOWDOWN * cpu_s:
        return _MAX_SLOWDOWN if wall_s > 0 else 1.0
    return max(1.0, wall_s / cpu_s)
