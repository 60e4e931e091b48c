"""How long replicas take to start, which is the horizon of the forecasts.

What counts is the time from an order until the replica serves. The start time that a replica
reports leaves out the start of its process, which takes a cluster seconds; but it tells when the
replica was created, and so which order it fills. If an order cannot be filled, as on a full
cluster, the replicas that start are those of later orders. A start is not measured while an older
order is open, because it is uncertain then which order it filled.

The median start counts. A margin for slow starts would be paid all the time and used only when the
load jumps: with the 90th percentile and start times of which one in twenty takes 1.6 times the
median, a day of tweets cost 10% more and the SLA was kept in the same minutes (docs/forecasts.md).
"""

import math
import statistics
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

#: The horizon until the first start is known.
DEFAULT_S = 10.0
#: The number of start times that are kept.
_KEPT = 50
#: A start that takes longer than this many typical ones must have failed in between.
_FAILED_FACTOR = 3.0
#: Limit on what the first starts count for, unless replicas report longer ones.
_MAX_FIRST_S = 600.0
#: A replica that became ready, and its first report, belong together for this long.
_MATCHED_WITHIN_S = 60.0
#: By how much a replica may seem to have been created before its order: clocks, and rounding.
_EARLY_S = 0.5


class StartTimes:
    """Track the start times of the latest replicas of a deployment."""

    def __init__(self) -> None:
        self._reported_s: dict[str, float] = {}
        self._observed_s: deque[float] = deque(maxlen=_KEPT)
        self._ready: int | None = None
        self._tracked_since_s = math.inf
        # Order times of the replicas that are starting, oldest first; NaN if unknown.
        self._orders_s: list[float] = []
        # When replicas became ready whose first report is yet to come.
        self._became_ready_s: deque[float] = deque()
        # (created, serving since) of replicas that reported for the first time.
        self._first_reports_s: deque[tuple[float, float]] = deque()
        self._horizon_s: float | None = DEFAULT_S
        self._fixed_s: float | None = None

    def fix(self, start_time_s: float | None) -> None:
        """Let starts take this long, whatever is observed; None: as long as observed."""
        self._fixed_s = start_time_s

    def track(self, now_s: float, ordered: int, ready: int) -> None:
        """Note how many replicas are ordered, and how many of them serve.

        The cluster is assumed to replace a replica that dies at once.
        """
        if self._ready is None:
            self._ready, self._orders_s = ready, [math.nan] * max(0, ordered - ready)
            self._tracked_since_s = now_s
        self._became_ready_s.extend([now_s] * max(0, ready - self._ready))
        self._ready = ready
        self._match(now_s)
        # The orders of replicas that are ready stay until a first report tells which they are.
        open_orders = max(0, ordered - ready) + len(self._became_ready_s)
        del self._orders_s[open_orders:]
        self._orders_s += [now_s] * (open_orders - len(self._orders_s))

    def observe(
        self, replica_id: str, start_time_s: float, serving_since_s: float | None = None
    ) -> None:
        """Note the start time that a replica reports.

        Parameters
        ----------
        replica_id : str
        start_time_s : float
            Time from its creation until it served.
        serving_since_s : float or None
            When it began to serve, on the clock of `track`, with its first report; else None.
        """
        if serving_since_s is not None and serving_since_s > self._tracked_since_s:
            self._first_reports_s.append((serving_since_s - start_time_s, serving_since_s))
        if self._reported_s.get(replica_id) == start_time_s:
            return
        self._reported_s[replica_id] = start_time_s
        if len(self._reported_s) > _KEPT:
            del self._reported_s[next(iter(self._reported_s))]
        self._horizon_s = None

    def _match(self, now_s: float) -> None:
        """Find the orders that the replicas with a first report have filled."""
        while self._became_ready_s and self._first_reports_s:
            self._became_ready_s.popleft()
            created_s, serving_since_s = self._first_reports_s.popleft()
            self._fill(created_s, serving_since_s)
        while self._first_reports_s and self._first_reports_s[0][1] < now_s - _MATCHED_WITHIN_S:
            self._first_reports_s.popleft()
        while self._became_ready_s and self._became_ready_s[0] < now_s - _MATCHED_WITHIN_S:
            # It does not report, and nobody knows which order it filled.
            self._became_ready_s.popleft()
            if self._orders_s:
                self._orders_s.pop(0)

    def _fill(self, created_s: float, serving_since_s: float) -> None:
        """Take the newest order from before a replica's creation, and measure the start."""
        orders_s = self._orders_s
        if not orders_s:
            return
        before = [order_s for order_s in orders_s if order_s <= created_s + _EARLY_S]
        order_s = max(before) if before else orders_s[0]
        # Replicas that are ordered together are interchangeable.
        is_oldest = all(other_s >= order_s for other_s in orders_s)
        orders_s.remove(order_s)
        started_s = serving_since_s - order_s
        if is_oldest and before and started_s > 0:
            self._observed_s.append(self._plausible(started_s))
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
        """The median of the start times, in s: of those observed, or if more, reported.

        Of an even number it is the upper one, so that of two starts the slower counts.
        """
        if self._fixed_s is not None:
            return self._fixed_s
        if self._horizon_s is None:
            self._horizon_s = max(_median(self._observed_s), _median(self._reported_s.values()))
        return self._horizon_s

    def state_dict(self) -> dict[str, Any]:
        """Return the start times: those reported, by replica, and those observed."""
        return {
            "reported_s": dict(self._reported_s),
            "observed_s": list(self._observed_s),
            "fixed_s": self._fixed_s,
        }

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
        fixed_s = state.get("fixed_s")
        restored._fixed_s = None if fixed_s is None else float(fixed_s)
        return restored


def _median(times_s: Collection[float]) -> float:
    return statistics.median_high(times_s) if times_s else 0.0
