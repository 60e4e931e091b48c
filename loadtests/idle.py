"""Idle time of a load generator's event loop.

When a request finds every connection busy, either the service is slow or the generator is too busy
to read its answers. A busy generator has no idle time.
"""

import time
from collections.abc import Callable

from gevent import get_hub

# Below this idle share of a wait, the generator was too busy.
IDLE_SHARE = 0.1
_FIRST, _LAST = 2, -2


class Idle:
    """Accumulates the time for which this thread's event loop waits for events, in `total_s`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.total_s = 0.0
        self._clock = clock
        self._began_s = 0.0
        loop = get_hub().loop
        # The last call before the loop waits, and the first call after.
        self._before = loop.prepare(ref=False, priority=_LAST)
        self._after = loop.check(ref=False, priority=_FIRST)
        self._before.start(self._begin)
        self._after.start(self._end)

    def _begin(self) -> None:
        self._began_s = self._clock()

    def _end(self) -> None:
        self.total_s += self._clock() - self._began_s

    def close(self) -> None:
        self._before.close()
        self._after.close()


def connection_wait_s(waited_s: float, idle_s: float) -> float:
    """Return how much of a wait for a connection the service caused: all of it, or nothing.

    `waited_s` is below 0 if a connection was free. `idle_s` is for how much of the wait the event
    loop had nothing to do.
    """
    return waited_s if waited_s > 0 and idle_s >= IDLE_SHARE * waited_s else 0.0
