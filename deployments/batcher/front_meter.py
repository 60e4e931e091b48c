"""Measure the front of a replica: the event loop that reads, checks and answers requests.

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

from deployments.batcher.front_counts import FrontCounts, IterationSums
from deployments.models.threads import thread_cpu_wait_s

#: Period of the heartbeat, and how long it goes on after the last request or batch.
HEARTBEAT_S = 0.01
_BEAT_FOR_S = 1.0
#: Timers fire this late on an idle loop.
_TIMER_SLACK_S = 0.002
#: An iteration in which nothing was counted, and which took no longer than this, was idle.
_IDLE_ITERATION_S = 50e-6
#: How many times as long as in the iteration before a request is taken to cost at most.
_SLOWER_AT_MOST = 2.0


class FrontMeter:
    """Count and time the work of one event loop; every method runs on the loop's thread.

    Parameters
    ----------
    call_soon : callable
        Runs a callback in the loop's next iteration, as `asyncio.AbstractEventLoop.call_soon`.
    call_later : callable
        Runs a callback after a delay in seconds, as `asyncio.AbstractEventLoop.call_later`.
    clock, thread_clock, process_clock : callable
        Wall time, CPU time of the calling thread, and CPU time of the process, in seconds.
    cpu_wait_clock : callable
        For how long the calling thread has waited for a CPU, in seconds; None: not known.

    Attributes
    ----------
    requests, refused, batches : int
        Since the start; as in `FrontCounts`.
    request_s : float
        Length of the last iteration that read requests, per request.
    worked_s : float
        Total length of the iterations that had work, since the start.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        *,
        clock: Callable[[], float] = time.monotonic,
        thread_clock: Callable[[], float] = time.thread_time,
        process_clock: Callable[[], float] = time.process_time,
        cpu_wait_clock: Callable[[], float | None] = thread_cpu_wait_s,
    ) -> None:
        self.requests = 0
        self.refused = 0
        self.batches = 0
        self.request_s = self.worked_s = 0.0
        self._call_soon, self._call_later = call_soon, call_later
        self._clock, self._thread_clock, self._process_clock = clock, thread_clock, process_clock
        # The marker: pending while the loop works.
        self._working = False
        self._counted = False
        self._iteration_began_s = self._iteration_began_cpu_s = 0.0
        self._iteration_forward_s = self._iteration_forward_cpu_s = 0.0
        self._readable_since_s = -math.inf
        # Requests before the present iteration, and those of the iteration before.
        self._requests_before = self._last_requests = 0
        # Refused requests and batches before the present iteration.
        self._refused_before = self._batches_before = 0
        #: When the first request of the latest iteration that had any was read.
        self._first_read_s = 0.0
        # The heartbeat: due at infinity while it rests.
        self._beat_due_s = math.inf
        self._beat_cpu_s = 0.0
        self._last_work_s = -math.inf
        self._cpu_wait_clock = cpu_wait_clock
        # Since the last `take`.
        self._busy_s = self._busy_cpu_s = self._longest_lag_s = 0.0
        self._stalled_s = 0.0
        self._iterations = IterationSums()
        # CPU time of iterations without a request or batch, until one has a request.
        self._parts_cpu_s = 0.0
        self._cpu_wait_taken_s = cpu_wait_clock()
        self._taken = (clock(), thread_clock(), process_clock(), 0, 0, 0)

    @classmethod
    def on_loop(cls, loop: asyncio.AbstractEventLoop) -> "FrontMeter":
        """Return a meter for `loop`; call this on its thread."""
        return cls(loop.call_soon, loop.call_later)

    def request_read(self, now_s: float) -> float:
        """Count a request that is being read.

        Parameters
        ----------
        now_s : float
            Time, by `time.monotonic`.

        Returns
        -------
        float
            When it could first have been read, as `readable_since_s`.
        """
        if self.requests == self._requests_before:
            self._first_read_s = now_s
        self.requests += 1
        since_s = self.readable_since_s(now_s)
        self._note_work(now_s)
        return since_s

    def part_read(self, now_s: float) -> float:
        """Note that more of a counted request is read; parameters and result as `request_read`."""
        since_s = self.readable_since_s(now_s)
        self._note_work(now_s)
        return since_s

    def request_refused(self, requests: int = 1) -> None:
        """Count requests that were read and then refused before they were parsed."""
        self.refused += requests

    def batch_ended(self, now_s: float, forward_s: float = 0.0, forward_cpu_s: float = 0.0) -> None:
        """Count a batch that ended.

        Parameters
        ----------
        now_s : float
            Time, by `time.monotonic`.
        forward_s, forward_cpu_s : float
            Wall and CPU time for which the model computed it on the loop's own thread; 0 if another
            thread did.
        """
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
        """Return how much longer the present iteration is likely to take.

        Its answers leave when all that its poll returned has been read. This is when that is, if
        there are as many requests as in the iteration before, and the rest cost what those before
        the present one did. But one slow request says little of the others: they are not taken to
        cost more than twice what those in the iteration before did. The batches that it ran before
        it read do not count.
        """
        handled = self.requests - self._requests_before - 1
        if not self._working or not 0 < handled < self._last_requests:
            return 0.0
        each_s = max(0.0, now_s - self._first_read_s) / handled
        each_s = min(each_s, _SLOWER_AT_MOST * self.request_s)
        return each_s * (self._last_requests - handled)

    def take(self) -> FrontCounts:
        """Return what the front did since the last call."""
        now = (
            *(self._clock(), self._thread_clock(), self._process_clock()),
            *(self.requests, self.refused, self.batches),
        )
        duration_s, cpu_s, process_cpu_s, requests, refused, batches = (
            after - before for after, before in zip(now, self._taken, strict=True)
        )
        before_s, self._cpu_wait_taken_s = self._cpu_wait_taken_s, self._cpu_wait_clock()
        cpu_wait_s = None
        if before_s is not None and self._cpu_wait_taken_s is not None:
            cpu_wait_s = self._cpu_wait_taken_s - before_s
        counts = FrontCounts(
            duration_s=duration_s,
            requests=int(requests),
            refused=int(refused),
            batches=int(batches),
            busy_s=self._busy_s,
            busy_cpu_s=self._busy_cpu_s,
            other_cpu_s=max(0.0, process_cpu_s - cpu_s),
            longest_lag_s=self._longest_lag_s,
            cpu_wait_s=cpu_wait_s,
            iterations=self._iterations,
            stalled_s=self._stalled_s,
        )
        self._taken, self._iterations = now, IterationSums()
        self._busy_s = self._busy_cpu_s = self._longest_lag_s = self._stalled_s = 0.0
        return counts

    def _note_work(self, now_s: float) -> None:
        self._counted = True
        if not self._working:
            self._working = True
            self._readable_since_s = self._iteration_began_s = now_s
            self._iteration_began_cpu_s = self._thread_clock()
            self._call_soon(self._end_iteration)
        self._last_work_s = now_s
        if self._beat_due_s == math.inf:
            self._next_beat(now_s)

    def _end_iteration(self) -> None:
        self._last_requests = self.requests - self._requests_before
        self._requests_before = self.requests
        now_s, cpu_s = self._clock(), self._thread_clock()
        length_s = now_s - self._iteration_began_s
        if not self._counted and length_s <= _IDLE_ITERATION_S:
            # The next poll waits, and returns at once what becomes readable.
            self._working = False
            return
        self._counted = False
        self.worked_s += length_s
        if self._last_requests:
            self.request_s = length_s / self._last_requests
        self._busy_s += max(0.0, length_s - self._iteration_forward_s)
        length_cpu_s = cpu_s - self._iteration_began_cpu_s
        front_cpu_s = max(0.0, length_cpu_s - self._iteration_forward_cpu_s)
        self._busy_cpu_s += front_cpu_s
        refused = self.refused - self._refused_before
        answered, batches = self._last_requests - refused, self.batches - self._batches_before
        self._refused_before, self._batches_before = self.refused, self.batches
        if answered > 0 or refused:
            cpu_of_requests_s = front_cpu_s + self._parts_cpu_s
            self._iterations.add(max(0, answered), batches, refused, cpu_of_requests_s)
            self._parts_cpu_s = 0.0
        elif batches:
            self._iterations.add(0, batches, 0, front_cpu_s)
        else:
            # It read or parsed a part of a large body: that is a cost of requests as well.
            self._parts_cpu_s += front_cpu_s
        self._iteration_forward_s = self._iteration_forward_cpu_s = 0.0
        self._longest_lag_s = max(self._longest_lag_s, length_s)
        self._readable_since_s = self._iteration_began_s
        self._iteration_began_s, self._iteration_began_cpu_s = now_s, cpu_s
        self._call_soon(self._end_iteration)

    def _beat(self) -> None:
        now_s = self._clock()
        late_s = now_s - self._beat_due_s
        self._longest_lag_s = max(self._longest_lag_s, late_s)
        worked_s = self._thread_clock() - self._beat_cpu_s
        self._stalled_s += max(0.0, late_s - _TIMER_SLACK_S - worked_s)
        if now_s - self._last_work_s > _BEAT_FOR_S:
            self._beat_due_s = math.inf
            return
        self._next_beat(now_s)

    def _next_beat(self, now_s: float) -> None:
        self._beat_due_s, self._beat_cpu_s = now_s + HEARTBEAT_S, self._thread_clock()
        self._call_later(HEARTBEAT_S, self._beat)
