"""Measure a replica's event loop, which reads, checks and answers requests.

A request waits in its socket while the loop is at work. The loop itself cannot see for how long,
but it can bound it: what is read in one iteration became readable after the poll of the iteration
before, or that poll would have returned it. So the meter times the iterations. A callback that is
scheduled while the loop works runs just before the next poll (uvloop) or just after it (asyncio);
it marks where an iteration ends, and is scheduled again until an iteration had nothing to do.

A loop that waits in its poll can be late, too: another thread may hold the interpreter's lock, or
another process the CPU. While requests come, a heartbeat shows that: what is read while it is
overdue may have been readable since it was due.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from deployments.models.threads import thread_cpu_wait_s

#: Period of the heartbeat, and how long it goes on after the last request or batch.
HEARTBEAT_S = 0.01
_BEAT_FOR_S = 1.0
#: Timers fire this late on an idle loop.
_TIMER_SLACK_S = 0.002
#: An iteration in which nothing was counted, and which took no longer than this, was idle.
_IDLE_ITERATION_S = 50e-6


@dataclass(frozen=True, slots=True)
class EventLoopCounts:
    """The work of the event loop between two calls of `EventLoopMeter.take`.

    Among the `requests` read, some were `refused` before they were parsed. `busy_s` is the wall
    time of the iterations that had work, `work_cpu_s` their CPU time; both without the batches that
    they computed, which `cpu_s`, the CPU time of the thread, includes. For `cpu_wait_s` the thread
    was ready to run, but had no CPU; 0 if that is not known. `longest_lag_s` is the longest that
    the loop kept anything waiting: its longest iteration, or its latest heartbeat.
    """

    duration_s: float
    requests: int
    refused: int
    batches: int
    busy_s: float
    cpu_s: float
    work_cpu_s: float
    cpu_wait_s: float
    longest_lag_s: float


class EventLoopMeter:
    """Count and time the work of one event loop; every method runs on the loop's thread.

    The counts are since the start. `cpu_wait_clock` says for how long the thread has waited for a
    CPU, in seconds; None: not known.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        *,
        clock: Callable[[], float] = time.monotonic,
        thread_clock: Callable[[], float] = time.thread_time,
        cpu_wait_clock: Callable[[], float | None] = thread_cpu_wait_s,
    ) -> None:
        self.requests = self.refused = self.batches = 0
        self._call_soon, self._call_later = call_soon, call_later
        self._clock, self._thread_clock = clock, thread_clock
        self._cpu_wait_clock = cpu_wait_clock
        # The marker: pending while the loop works.
        self._working = False
        self._counted = False
        self._iteration_began_s = self._iteration_began_cpu_s = 0.0
        self._iteration_forward_s = self._iteration_forward_cpu_s = 0.0
        self._readable_since_s = -math.inf
        #: Length of the iteration before, without batches.
        self._last_length_s = 0.0
        # The heartbeat: due at infinity while it rests.
        self._beat_due_s = math.inf
        self._last_work_s = -math.inf
        # Since the last `take`.
        self._busy_s = self._work_cpu_s = self._longest_lag_s = 0.0
        self._taken = self._totals()

    @classmethod
    def on_loop(cls, loop: asyncio.AbstractEventLoop) -> "EventLoopMeter":
        return cls(loop.call_soon, loop.call_later)

    def request_read(self, now_s: float) -> float:
        """Count a request that is being read; return when it could first have been read."""
        self.requests += 1
        return self.part_read(now_s)

    def part_read(self, now_s: float) -> float:
        """Record that more of a counted request is read, as `request_read` does."""
        since_s = self.readable_since_s(now_s)
        self._note_work(now_s)
        return since_s

    def requests_refused(self, number: int) -> None:
        """Count requests that were read and then refused before they were parsed."""
        self.refused += number

    def batch_ended(self, now_s: float, forward_s: float = 0.0, forward_cpu_s: float = 0.0) -> None:
        """Count a batch, and the time for which the model computed it on the loop's own thread."""
        self.batches += 1
        if self._working:
            self._iteration_forward_s += forward_s
            self._iteration_forward_cpu_s += forward_cpu_s
        self._note_work(now_s)

    def readable_since_s(self, now_s: float) -> float:
        """Return the earliest time at which a request that is read now could have been read.

        It is `now_s` if the loop was idle: its poll returns at once what becomes readable.
        """
        since_s = self._readable_since_s if self._working else now_s
        if now_s > self._beat_due_s + _TIMER_SLACK_S:
            since_s = min(since_s, self._beat_due_s)
        return since_s

    def time_left_s(self, now_s: float) -> float:
        """Return how much longer the present iteration is likely to take: as long as the last one.

        Its answers leave when all that its poll returned has been read. Batches do not count.
        """
        if not self._working:
            return 0.0
        passed_s = now_s - self._iteration_began_s - self._iteration_forward_s
        return max(0.0, self._last_length_s - passed_s)

    def take(self) -> EventLoopCounts:
        """Return what the loop did since the last call."""
        before, self._taken = self._taken, self._totals()
        duration_s, cpu_s, cpu_wait_s, requests, refused, batches = (
            now - then for now, then in zip(self._taken, before, strict=True)
        )
        counts = EventLoopCounts(
            duration_s,
            int(requests),
            int(refused),
            int(batches),
            self._busy_s,
            cpu_s,
            self._work_cpu_s,
            cpu_wait_s,
            self._longest_lag_s,
        )
        self._busy_s = self._work_cpu_s = self._longest_lag_s = 0.0
        return counts

    def _totals(self) -> tuple[float, ...]:
        return (
            *(self._clock(), self._thread_clock(), self._cpu_wait_clock() or 0.0),
            *(self.requests, self.refused, self.batches),
        )

    def _note_work(self, now_s: float) -> None:
        self._counted = True
        if not self._working:
            self._working = True
            self._readable_since_s = self._iteration_began_s = now_s
            self._iteration_began_cpu_s = self._thread_clock()
            self._last_length_s = 0.0
            self._call_soon(self._end_iteration)
        self._last_work_s = now_s
        if self._beat_due_s == math.inf:
            self._next_beat(now_s)

    def _end_iteration(self) -> None:
        now_s, cpu_s = self._clock(), self._thread_clock()
        length_s = now_s - self._iteration_began_s
        if not self._counted and length_s <= _IDLE_ITERATION_S:
            # The next poll waits, and returns at once what becomes readable.
            self._working = False
            return
        self._counted = False
        self._last_length_s = max(0.0, length_s - self._iteration_forward_s)
        self._busy_s += self._last_length_s
        work_cpu_s = cpu_s - self._iteration_began_cpu_s - self._iteration_forward_cpu_s
        self._work_cpu_s += max(0.0, work_cpu_s)
        self._iteration_forward_s = self._iteration_forward_cpu_s = 0.0
        self._longest_lag_s = max(self._longest_lag_s, length_s)
        self._readable_since_s = self._iteration_began_s
        self._iteration_began_s, self._iteration_began_cpu_s = now_s, cpu_s
        self._call_soon(self._end_iteration)

    def _beat(self) -> None:
        now_s = self._clock()
        self._longest_lag_s = max(self._longest_lag_s, now_s - self._beat_due_s)
        if now_s - self._last_work_s > _BEAT_FOR_S:
            self._beat_due_s = math.inf
            return
        self._next_beat(now_s)

    def _next_beat(self, now_s: float) -> None:
        self._beat_due_s = now_s + HEARTBEAT_S
        self._call_later(HEARTBEAT_S, self._beat)
