"""Order no more replicas where those added last gained nothing, because they share their cores.

Where other processes, or replicas themselves, use up the cores, another replica on the same machine
only divides them further. A replica says so (its bottleneck is "neither"), but it cannot know
whether the next one would get cores of its own: on a cluster it may. So the first order is tried,
and what the fleet answers in time before and after tells.
"""

import math
from collections import deque
from dataclasses import dataclass, replace

from autoscaler.reports import ReplicaReport

#: Answers in time are counted over so many seconds, and begin to be after a replica serves.
WINDOW_S = 15.0
#: Replicas that are added must raise the rate of answers in time by this factor, as long as this
#: share of what is offered is not answered in time.
LEAST_GAIN, LEAST_LOST = 1.1, 0.1
#: Time after which an order is tried again, and without the bottleneck after which it may be.
RETRY_S, CLEARED_AFTER_S = 600.0, 30.0
#: Why a fleet is kept.
HELD_IN_WORDS = "the replicas that were added last share their cores and gained less than a tenth"


@dataclass(frozen=True)
class _Order:
    replicas: int
    in_time_before_per_s: float
    served_since_s: float = math.inf


class SharedCoresHold:
    """Compare what a fleet answers in time before and after an order on shared cores."""

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float]] = deque()
        self._order: _Order | None = None
        self._held_since_s = -math.inf
        self._shared_s = -math.inf

    def count_between(self, before: ReplicaReport, after: ReplicaReport) -> None:
        """Count the answers in time between two reports of one replica."""
        answered = after.answered_total - before.answered_total
        in_time = answered - (after.late_total - before.late_total)
        self._answers.append((after.time_s, in_time if in_time > 0 else 0.0))

    def observe(
        self, now_s: float, *, on_shared_cores: bool, offered_per_s: float, ready_replicas: int
    ) -> None:
        """Judge the last order, if its replicas have served for long enough.

        Parameters
        ----------
        now_s : float
        on_shared_cores : bool
            Whether neither front nor device limits most replicas.
        offered_per_s : float
            Requests per second that clients offer.
        ready_replicas : int
            Replicas that serve.
        """
        while self._answers and self._answers[0][0] <= now_s - WINDOW_S:
            self._answers.popleft()
        if on_shared_cores:
            self._shared_s = now_s
        elif now_s - self._shared_s > CLEARED_AFTER_S:
            self._order, self._held_since_s = None, -math.inf
        order = self._order
        if order is None:
            return
        if ready_replicas < order.replicas:
            self._order = replace(order, served_since_s=math.inf)
        elif order.served_since_s == math.inf:
            self._order = replace(order, served_since_s=now_s)
        elif now_s - order.served_since_s > WINDOW_S:
            self._order = None
            in_time_per_s = self._in_time_per_s()
            gained = in_time_per_s >= LEAST_GAIN * order.in_time_before_per_s
            if not gained and in_time_per_s < (1 - LEAST_LOST) * offered_per_s:
                self._held_since_s = now_s

    def note_order(self, replicas: int) -> None:
        """Note that replicas are ordered on shared cores; `replicas` is how many there will be."""
        if self._order is None:
            self._order = _Order(replicas, self._in_time_per_s())
        elif replicas > self._order.replicas:
            self._order = replace(self._order, replicas=replicas, served_since_s=math.inf)

    def note_scale_in(self, replicas: int) -> None:
        """Note that there will be as few `replicas`: an order of more is not filled any more."""
        if self._order is not None and replicas < self._order.replicas:
            self._order = None

    def holds(self, now_s: float) -> bool:
        """Return whether no more replicas should be ordered."""
        return now_s - self._held_since_s < RETRY_S

    def _in_time_per_s(self) -> float:
        return sum(in_time for _, in_time in self._answers) / WINDOW_S
