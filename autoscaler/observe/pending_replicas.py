"""Replicas that are ordered and do not serve yet: those that are late, and a first one."""

import math
from collections import deque

from autoscaler.decision import FleetState
from autoscaler.observe.offered_load import OfferedLoad

#: Ordered replicas that have not started after this many starts' time, and this long, are late.
_AFTER_STARTS, _AFTER_S = 2.0, 30.0


class PendingReplicas:
    """Track for how long ordered replicas have not started: the cluster is full, or they fail."""

    def __init__(self) -> None:
        # While fewer serve than were ordered: how many serve, and what was ordered since when.
        self._ready = 0
        self._ordered: deque[tuple[float, int]] = deque()

    def observe(self, now_s: float, ordered: int, ready: int) -> None:
        """Record since when replicas have been pending without another one starting to serve."""
        if ready >= ordered or ready > self._ready:
            self._ordered.clear()
        self._ready = ready
        if ready < ordered and (not self._ordered or self._ordered[-1][1] != ordered):
            self._ordered.append((now_s, ordered))

    def late(self, now_s: float, start_time_s: float) -> int:
        """Return how many replicas have been pending for much longer than a start takes."""
        since_s = now_s - _AFTER_STARTS * start_time_s - _AFTER_S
        while len(self._ordered) > 1 and self._ordered[1][0] <= since_s:
            self._ordered.popleft()
        if not self._ordered or self._ordered[0][0] > since_s:
            return 0
        # What was ordered later has not waited for as long.
        return max(0, min(ordered for _, ordered in self._ordered) - self._ready)


class ScaleFromZero:
    """Track the requests that wait outside because no replica serves."""

    def __init__(self) -> None:
        #: Since when requests have been waiting without a break; None if none waits.
        self._since_s: float | None = None
        #: When a request last waited for a first replica, or such a replica was starting.
        self._last_s = -math.inf

    def observe(self, now_s: float, fleet: FleetState, load: OfferedLoad) -> None:
        """Record the requests that wait now, also in the offered load."""
        if fleet.waiting <= 0:
            self._since_s = None
        else:
            self._last_s = now_s
            if self._since_s is None:
                self._since_s = now_s
            load.note_waiting(self._since_s, now_s)
        if fleet.ready_replicas == 0:
            # The first request may still be queued at the proxy, which sends no reports.
            self._last_s = now_s

    def rate_per_s(self, now_s: float, waiting: float) -> float | None:
        """Return the rate at which waiting requests have come; None if none waits.

        Their number keeps growing until a replica starts, although the load does not.
        """
        return None if self._since_s is None else waiting / max(1.0, now_s - self._since_s)

    def idle_s(self, now_s: float, load: OfferedLoad) -> float:
        """Return for how long no request has come, in s."""
        return now_s - max(load.last_request_s, load.first_s, self._last_s)
