"""How long replicas take to start: the horizon of the forecasts.

What counts is the time from an order until the replica serves, as it was seen from here: what a
replica tells of itself leaves out its process, which a cluster takes seconds to start.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

#: Until a start was seen.
DEFAULT_S = 10.0
_KEPT = 50
_PERCENTILE = 90
#: A start that takes longer than this many usual ones has failed in between.
_FAILED = 3.0
#: What the first starts count for at most, unless replicas tell of longer ones.
_FIRST_AT_MOST_S = 600.0


class StartTimes:
    """The start times of the latest replicas of a deployment."""

    def __init__(self) -> None:
        self._told_s: dict[str, float] = {}
        self._seen_s: deque[float] = deque(maxlen=_KEPT)
        self._ready: int | None = None
        # Times of the orders that do not serve yet, oldest first; NaN where nobody knows.
        self._orders_s: list[float] = []
        self._horizon_s: float | None = DEFAULT_S

    def follow(self, now_s: float, ordered: int, ready: int) -> None:
        """Take in how many replicas are ordered and how many of them serve.

        Replicas are taken to become ready in the order of their orders. One that dies is ordered
        anew by the cluster, at once.
        """
        if self._ready is None:
            self._ready, self._orders_s = ready, [math.nan] * max(0, ordered - ready)
        for _ in range(min(max(0, ready - self._ready), len(self._orders_s))):
            started_s = now_s - self._orders_s.pop(0)
            if started_s > 0:
                self._seen_s.append(self._plausible(started_s))
                self._horizon_s = None
        self._ready = ready
        starting = max(0, ordered - ready)
        del self._orders_s[starting:]
        self._orders_s += [now_s] * (starting - len(self._orders_s))

    def observe(self, replica_id: str, start_time_s: float) -> None:
        """Take in how long a replica says it took; it counts until a start was seen from here."""
        if self._told_s.get(replica_id) == start_time_s:
            return
        self._told_s[replica_id] = start_time_s
        if len(self._told_s) > _KEPT:
            del self._told_s[next(iter(self._told_s))]
        self._horizon_s = None

    def _plausible(self, start_time_s: float) -> float:
        if len(self._seen_s) >= 3:
            return min(start_time_s, _FAILED * statistics.median(self._seen_s))
        # An order may wait for hours until there is a machine for it.
        told_s = max(self._told_s.values(), default=0.0)
        return min(start_time_s, max(_FIRST_AT_MOST_S, _FAILED * told_s))

    @property
    def horizon_s(self) -> float:
        """The 90th percentile of the start times: in nine of ten cases a replica is there by then.

        With the slowest of all instead, one bad start would be paid for until it is forgotten.
        """
        if self._horizon_s is None:
            seen = sorted(self._seen_s or self._told_s.values())
            self._horizon_s = seen[math.ceil(_PERCENTILE / 100 * len(seen)) - 1]
        return self._horizon_s

    def state_dict(self) -> dict[str, Any]:
        """Give the start times: those told, by replica, and those seen."""
        return {"told_s": dict(self._told_s), "seen_s": list(self._seen_s)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "StartTimes":
        """Make one that knows what `state_dict` gave.

        Raises
        ------
        KeyError, TypeError, ValueError, AttributeError
            The state is not of this form.
        """
        known = cls()
        for replica_id, start_time_s in state["told_s"].items():
            known.observe(str(replica_id), float(start_time_s))
        known._seen_s.extend(float(start_time_s) for start_time_s in state["seen_s"])
        if known._seen_s:
            known._horizon_s = None
        return known
