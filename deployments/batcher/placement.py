"""Where a batch runs: on the event loop's own thread, or on the device thread.

To hand a batch to another thread and back costs a tenth of a millisecond or more of CPU, and the
threads then compete for the interpreter's lock. A batch that takes less is run by the event loop
itself. While it runs, nothing else does, so this is for batches that are short in every respect.
"""

import math
from collections.abc import Sequence

#: Longest batch that the event loop runs itself on its only CPU. Handing one over costs 0.05 ms of
#: CPU, and its answers wait for two threads to be woken. Meanwhile the loop may lose the
#: interpreter's lock at each read and write.
LONGEST_ON_LOOP_MS = 1.0
#: The same where the device thread has a CPU of its own, so that only the hand-over is saved.
LONGEST_BESIDE_CPUS_MS = 0.2
#: Neither is more than this share of the SLA's response time.
SHARE_ON_LOOP = 0.05
#: So many batches in a row tell how a model is; fewer may be bad luck.
IN_A_ROW = 8


def longest_on_loop_ms(cpus: float, response_time_ms: float) -> float:
    """Return how long the batches may take that the event loop runs itself."""
    longest_ms = LONGEST_ON_LOOP_MS if cpus <= 1 else LONGEST_BESIDE_CPUS_MS
    return min(longest_ms, SHARE_ON_LOOP * response_time_ms)


class BatchPlacement:
    """Decide which batches the event loop runs itself: those of at most `largest` rows.

    Those are the batches of the sizes whose latency is within the limit. A size that was taken
    stays until its latency exceeds `LEAVE` times the limit.

    If `IN_A_ROW` batches turn out to take longer than that, or to wait for something else than the
    CPU, their size and all larger ones go back to the device thread: at once where one computes for
    `AT_ONCE` times the limit or waits for `LONGEST_WAIT_S`. They stay away for `BAN_S`.
    """

    LEAVE, AT_ONCE = 2.0, 10.0
    #: Shorter waits may be for the interpreter's lock, on a machine with too much to do.
    LONGEST_WAIT_S = 0.05
    BAN_S = 60.0

    def __init__(self) -> None:
        self.largest = 0
        self._limit_ms = 0.0
        self._banned_from = math.inf
        self._banned_until_s = -math.inf
        self._slow = 0

    def use(self, latency_ms: Sequence[float], limit_ms: float, now_s: float) -> None:
        """Decide anew by the latency of batches of 1, 2, …: at least when the profile changed."""
        self._limit_ms = limit_ms
        if now_s >= self._banned_until_s:
            self._banned_from = math.inf
        enters = sum(latency <= limit_ms for latency in latency_ms)
        stays = sum(latency <= self.LEAVE * limit_ms for latency in latency_ms)
        allowed = len(latency_ms) if math.isinf(self._banned_from) else int(self._banned_from) - 1
        self.largest = min(max(self.largest, enters), stays, allowed)

    def observe(
        self, size: int, duration_s: float, cpu_s: float, *, waited: bool, now_s: float
    ) -> bool:
        """Record a batch that the event loop ran; return whether its size goes back.

        `waited`: the thread gave up its CPU of its own accord.
        """
        # A thread that was preempted would have been on the device thread as well.
        ms = 1e3 * (duration_s if waited else cpu_s)
        waits = waited and 2 * cpu_s < duration_s
        self._slow = self._slow + 1 if waits or ms > self.LEAVE * self._limit_ms else 0
        very_long = 1e3 * cpu_s > self.AT_ONCE * self._limit_ms or (
            waits and duration_s > self.LONGEST_WAIT_S
        )
        if not very_long and self._slow < IN_A_ROW:
            return False
        self._slow = 0
        self.largest = min(self.largest, size - 1)
        self._banned_from = size
        self._banned_until_s = now_s + self.BAN_S
        return True
