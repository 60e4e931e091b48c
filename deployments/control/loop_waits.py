"""How busy a replica's event loop is, and what it waits for while it works.

The loop is slower than its CPU time if it waits: for the interpreter's lock, while a batch holds
it, or for a CPU that other processes use. The first wait is at most as long as the process's other
threads ran, so at least the rest tells that the cores are shared; the kernel's own account of the
thread's waits for a CPU can tell of more.

A model may keep the lock for a whole batch, even while it sleeps. Then the loop reads nothing until
the batch ends: front and device take turns, as on one CPU.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deployments.batcher.front_counts import FrontCounts
from deployments.batcher.front_meter import HEARTBEAT_S

#: Time after which a second's waits count for 1/e.
_MEMORY_S = 10.0
#: Least utilization of a loop that is said to be held up, and share of its work that it waits.
_MIN_UTILIZATION, _FOREIGN_SHARE = 0.2, 1 / 3
#: A loop that gets less of a CPU than this allows is not slow but stopped.
_MAX_SLOWDOWN = 100.0
#: Batches keep the lock if heartbeats are late by this share of what they would be if all did so
#: to their ends; they no longer do below the second.
_LOCK_HELD, _LOCK_LEFT = 0.5, 0.25
#: Nothing is judged where that is a smaller fraction of the time.
_LEAST_LOCKED = 0.02


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
    lag_s : float
        The longest that the loop kept anything waiting in the last tick.
    lock_held : bool
        Whether batches on another thread keep the interpreter's lock while they are computed.
    """

    utilization: float = 0.0
    slowdown: float = 1.0
    foreign_slowdown: float = 1.0
    foreign_wait_share: float = 0.0
    lag_s: float = 0.0
    lock_held: bool = False

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
        # Duration, busy time, its CPU time, foreign wait; by how much heartbeats were late for the
        # process's own threads, and the same if batches keep the lock.
        self._sums_s = np.zeros(6)
        self._lock_held = False

    def observe(self, counts: FrontCounts, batches_s: Sequence[float] = ()) -> None:
        """Record what the loop did in a tick.

        Parameters
        ----------
        counts : FrontCounts
        batches_s : sequence of float
            Durations of the batches that another thread computed.
        """
        wait_s = counts.busy_s - counts.busy_cpu_s
        if counts.cpu_wait_s is None:
            foreign_s = max(0.0, wait_s - counts.other_cpu_s)
        else:
            # A thread that sleeps may keep the lock: the kernel tells that from other processes.
            own_s = max(counts.other_cpu_s, sum(batches_s))
            foreign_s = max(0.0, wait_s - own_s, min(wait_s, counts.cpu_wait_s))
        stalled_s = max(0.0, counts.stalled_s - (counts.cpu_wait_s or 0.0))
        self._sums_s *= math.exp(-counts.duration_s / _MEMORY_S)
        self._sums_s += (
            *(counts.duration_s, counts.busy_s, counts.busy_cpu_s, foreign_s),
            *(stalled_s, sum(map(_stall_if_locked_s, batches_s))),
        )
        duration_s, busy_s, busy_cpu_s, foreign_s, stalled_s, locked_s = self._sums_s.tolist()
        if locked_s > _LEAST_LOCKED * duration_s:
            share = _LOCK_LEFT if self._lock_held else _LOCK_HELD
            self._lock_held = stalled_s > share * locked_s
        self.state = LoopState(
            utilization=min(1.0, busy_s / duration_s) if duration_s else 0.0,
            slowdown=_slowdown(busy_s, busy_cpu_s),
            foreign_slowdown=_slowdown(busy_cpu_s + foreign_s, busy_cpu_s),
            foreign_wait_share=foreign_s / busy_s if busy_s else 0.0,
            lag_s=counts.longest_lag_s,
            lock_held=self._lock_held,
        )


def _stall_if_locked_s(batch_s: float) -> float:
    """Return how late, on average, a batch that keeps the lock makes the heartbeat due in it."""
    if batch_s >= HEARTBEAT_S:
        return batch_s - HEARTBEAT_S / 2
    return batch_s**2 / (2 * HEARTBEAT_S)


def _slowdown(wall_s: float, cpu_s: float) -> float:
    if wall_s >= _MAX_SLOWDOWN * cpu_s:
        return _MAX_SLOWDOWN if wall_s > 0 else 1.0
    return max(1.0, wall_s / cpu_s)
