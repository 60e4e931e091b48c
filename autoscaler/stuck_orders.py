"""Ordered replicas that do not start, because the cluster has no room for them or they fail."""

from collections import deque

from autoscaler.decision import FleetState

#: Ordered replicas that have not started after this many starts' time, and this long, are stuck.
_AFTER_STARTS, _AFTER_S = 2.0, 30.0


class StuckOrders:
    """Track how long replicas have been missing."""

    def __init__(self) -> None:
        # While fewer serve than were ordered: how many serve, and what was ordered since when.
        self._ready = 0
        self._ordered: deque[tuple[float, int]] = deque()

    def observe(self, now_s: float, fleet: FleetState) -> None:
        """Note since when replicas have been missing without another one starting to serve."""
        ready, ordered = fleet.ready_replicas, fleet.current_replicas
        if ready is None:
            return
        if ready >= ordered or ready > self._ready:
            self._ordered.clear()
        self._ready = ready
        if ready < ordered and (not self._ordered or self._ordered[-1][1] != ordered):
            self._ordered.append((now_s, ordered))

    def count(self, now_s: float, start_time_s: float) -> int:
        """Return how many ordered replicas have not started for much longer than starts take.

        Parameters
        ----------
        now_s : float
        start_time_s : float
            How long a start takes.
        """
        since_s = now_s - _AFTER_STARTS * start_time_s - _AFTER_S
        while len(self._ordered) > 1 and self._ordered[1][0] <= since_s:
            self._ordered.popleft()
        if not self._ordered or self._ordered[0][0] > since_s:
            return 0
        # What was ordered later has not waited for as long.
        return max(0, min(ordered for _, ordered in self._ordered) - self._ready)
