"""Scaling to zero and back: how long no request has come, and requests that wait for a replica."""

import math

from autoscaler.decision import FleetState
from autoscaler.offered_load import OfferedLoad


class FirstReplicaWait:
    """Track the requests that wait outside because no replica serves."""

    def __init__(self) -> None:
        #: Since when requests have been waiting without a break; None if none waits.
        self._since_s: float | None = None
        #: When a request last waited for a first replica, or such a replica was starting.
        self._last_s = -math.inf

    def observe(self, now_s: float, fleet: FleetState, load: OfferedLoad) -> None:
        """Note the requests that wait now, also in the offered load."""
        if fleet.waiting <= 0:
            self._since_s = None
        else:
            self._last_s = now_s
            if self._since_s is None:
                self._since_s = now_s
            load.note_waiting(self._since_s, now_s)
        if fleet.ready_replicas == 0:
            # The waking request may still be queued at the proxy, which sends no reports.
            self._last_s = now_s

    def rate_per_s(self, now_s: float, waiting: float) -> float | None:
        """Return the rate at which waiting requests have come; None if none waits.

        Their number keeps growing until a replica starts, although the load does not.
        """
        return None if self._since_s is None else waiting / max(1.0, now_s - self._since_s)

    def idle_s(self, now_s: float, load: OfferedLoad) -> float:
        """Return for how long no request has come, in s."""
        return now_s - max(load.last_request_s, load.first_s, self._last_s)
