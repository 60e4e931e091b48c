"""The phases of a replica's start: process, imports, store, weights, and so on."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PHASES = ("process", "imports", "store", "weights", "model", "profile", "warm_up", "rest")
"""In the order of a start: the process until the replica's constructor runs; the modules of the
model and its framework; waiting for the node's model store; reading or attaching weights; the rest
of the model's `load`; measuring its profile; its first batch; all else until the replica serves."""


class StartupTimings:
    """Times the phases of a start. A phase within another one counts for the inner alone.

    `process_s` is how long the process has worked before; it counts in `total_s`.
    """

    def __init__(self, process_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin_s = clock()
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._seconds["process"] = process_s
        self._within: list[str] = []
        self._since_s = self._begin_s
        self.total_s: float | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._switch()
        self._within.append(name)
        try:
            yield
        finally:
            self._switch()
            self._within.pop()

    def ready(self) -> None:
        self._switch()
        self.total_s = sum(self._seconds.values())

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase; they add up to `total_s`."""
        return dict(self._seconds)

    def _switch(self) -> None:
        now_s = self._clock()
        self._seconds[self._within[-1] if self._within else "rest"] += now_s - self._since_s
        self._since_s = now_s


def process_busy_s() -> float:
    """Return for how long this process's main thread has run or waited for a processor, in s.

    Ray keeps worker processes waiting, so the age of one says nothing about the start of a replica.
    Where the kernel does not count this, the age is returned.
    """
    try:
        running_ns, waiting_ns, _ = Path("/proc/self/schedstat").read_text().split()
    except (OSError, ValueError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return 1e-9 * (int(running_ns) + int(waiting_ns))
