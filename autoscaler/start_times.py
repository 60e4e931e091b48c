"""How long replicas take to start, which is the horizon of the forecasts.

What counts is the time from an order until the replica serves, as the autoscaler observes it. The
start time that a replica reports leaves out the start of its process, which takes a cluster
seconds.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

#: The horizon until the first start is known.
DEFAULT_S = 10.0
#: The number of start times that are kept.
_KEPT = 50
_PERCENTILE = 90
#: A start that takes longer than this many typical ones must have failed in between.
_FAILED_FACTOR = 3.0
#: Limit on what the first starts count for, unless replicas report longer ones.
_MAX_FIRST_S = 600.0


class StartTimes:
    """Track the start times of the latest replicas of a deployment."""

    def __init__(self) -> None:
        self._reported_s: dict[str, float] = {}
        self._observed_s: deque[float] = deque(maxlen=_KEPT)
        self._ready: int | None = None
        # Order times of the replicas that are starting, oldest first; NaN if unknown.
        self._orders_s: list[float] = []
        self._horizon_s: float | None = DEFAULT_S

    def track(self, now_s: float, ordered: int, ready: int) -> None:
        """Note how many replicas are ordered, and how many of them serve.

        Replicas are assumed to become ready in the order in which they were ordered, and the
        cluster to replace one that dies at once.
        """
        if self._ready is None:
            self._ready, self._orders_s = ready, [math.nan] * max(0, ordered - ready)
        for _ in range(min(max(0, ready - self._ready), len(self._orders_s))):
            started_s = now_s - self._orders_s.pop(0)
            if started_s > 0:
                self._observed_s.append(self._plausible(started_s))
                self._horizon_s = None
        self._ready = ready
        starting = max(0, ordered - ready)
        del self._orders_s[starting:]
        self._orders_s += [now_s] * (starting - len(self._orders_s))

    def observe(self, replica_id: str, start_time_s: float) -> None:
        """Note the start time that a replica reports; it counts until a start has been observed."""
        if self._reported_s.get(replica_id) == start_time_s:
            return
        self._reported_s[replica_id] = start_time_s
        if len(self._reported_s) > _KEPT:
            del self._reported_s[next(iter(self._reported_s))]
        self._horizon_s = None

    def _plausible(self, start_time_s: float) -> float:
        """Limit an observed start time to what a start can take that did not fail."""
        if len(self._observed_s) >= 3:
            return min(start_time_s, _FAILED_FACTOR * statistics.median(self._observed_s))
        # An order may wait for hours for a free machine.
        reported_s = max(self._reported_s.values(), default=0.0)
        return min(start_time_s, max(_MAX_FIRST_S, _FAILED_FACTOR * reported_s))

    @property
    def horizon_s(self) -> float:
        """The 90th percentile of the start times, in s.

        With the slowest start instead, one bad start would cost money until it is forgotten.
        """
        if self._horizon_s is None:
            known_s = sorted(self._observed_s or self._reported_s.values())
            self._horizon_s = known_s[math.ceil(_PERCENTILE / 100 * len(known_s)) - 1]
        return self._horizon_s

    def state_dict(self) -> dict[str, Any]:
        """Return the start times: those reported, by replica, and those observed."""
        return {"reported_s": dict(self._reported_s), "observed_s": list(self._observed_s)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "StartTimes":
        """Make one from what `state_dict` returned.

        Raises
        ------
        KeyError, TypeError, ValueError, AttributeError
            The state does not have this form.
        """
        restored = cls()
        for replica_id, start_time_s in state["reported_s"].items():
            restored.observe(str(replica_id), float(start_time_s))
        restored._observed_s.extend(float(start_time_s) for start_time_s in state["observed_s"])
        if restored._observed_s:
            restored._horizon_s = None
        return restored
