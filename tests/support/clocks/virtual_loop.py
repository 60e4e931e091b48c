"""An event loop in virtual time: what it runs takes as long as the test says."""

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count


class VirtualLoop:
    """Run timers, callbacks and reads as an event loop does, on a clock that the test drives.

    Callbacks run after the poll (asyncio) or before it (uvloop). `polls_s` has when each poll began
    to look, or returned, if it had to wait.
    """

    def __init__(self, *, marks_after_poll: bool = False, poll_s: float = 2e-6) -> None:
        self.now_s = self.cpu_s = 0.0
        self.polls_s: list[float] = []
        self._marks_after_poll, self._poll_s = marks_after_poll, poll_s
        self._ready: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._reads: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now_s + delay_s, next(self._order), callback))

    def read_at(self, time_s: float, callback: Callable[[], None]) -> None:
        """Run `callback` in the first iteration whose poll finds the data of `time_s`."""
        heapq.heappush(self._reads, (time_s, next(self._order), callback))

    def work(self, duration_s: float, cpu_s: float | None = None) -> None:
        """Let time pass in a callback; the thread gets `cpu_s` of it, by default all."""
        self.now_s += duration_s
        self.cpu_s += duration_s if cpu_s is None else cpu_s

    def run_until(self, end_s: float) -> None:
        while self.now_s < end_s:
            self._run_due(self._timers, self.now_s)
            callbacks = [self._ready.popleft() for _ in range(len(self._ready))]
            if not self._marks_after_poll:
                _run(callbacks)
            waits = not self._ready and not (self._marks_after_poll and callbacks)
            self.now_s += self._poll_s
            if waits:
                due_s = [heap[0][0] for heap in (self._timers, self._reads) if heap]
                self.now_s = max(self.now_s, min([*due_s, end_s]))
            self.polls_s.append(self.now_s)
            polled_s = self.now_s
            if self._marks_after_poll:
                _run(callbacks)
            self._run_due(self._reads, polled_s)

    def _run_due(self, heap: list[tuple[float, int, Callable[[], None]]], until_s: float) -> None:
        callbacks = []
        while heap and heap[0][0] <= until_s:
            callbacks.append(heapq.heappop(heap)[2])
        _run(callbacks)


def _run(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()
