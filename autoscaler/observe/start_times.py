"""How long replicas take to start, which is the horizon of the forecasts.

What counts is the time from an order until the replica serves. A replica reports how long ago it
was created, so that part is known of every start, fast or slow. The *wait* before, from the order
to the creation, takes a cluster seconds, or hours if it has no room. It is certain only if all open
orders from before the creation are of the same time. Else nobody knows which of them the replica
filled, and which are left; its wait is then taken for the median of the certain ones. So an order
that cannot be filled charges its wait to no other start. To leave out starts that overtake older
orders would leave out the fast ones.

The median start counts. A margin for slow starts would be paid all the time and used only when the
load jumps: with the 90th percentile and start times of which one in twenty takes 1.6 times the
median, a day of tweets cost 10% more and the SLA was kept in the same minutes.

A start depends on the place where it finds its weights: memory of the node, its disk, or a remote.
So each place has its own median, and the latest starts show which of them comes next.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from autoscaler.reports import WEIGHTS_TIERS

#: The horizon until the first start is known.
DEFAULT_S = 10.0
#: The number of start times that are kept. Where starts differ by 30%, the median of a hundred is
#: off by 4%, that of fifty by 5%; but after a change of the model, half of them must be new.
_KEPT = 100
#: The next start finds its weights where most of so many latest ones did.
_LATEST = 3
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
        #: The codes in `WEIGHTS_TIERS` of the same replicas, in the same order.
        self._tiers: dict[str, int] = {}
        #: The waits of those of these replicas whose order is certain.
        self._waits_s: dict[str, float] = {}
        self._ready: int | None = None
        self._tracked_since_s = math.inf
        # Order times of the replicas that are starting, oldest first; -inf if unknown.
        self._orders_s: list[float] = []
        # When replicas became ready whose first report is yet to come.
        self._became_ready_s: deque[float] = deque()
        # (replica, created, serving since) of replicas that reported for the first time.
        self._first_reports: deque[tuple[str, float, float]] = deque()
        self._horizon_s: float | None = DEFAULT_S

    def track(self, now_s: float, ordered: int, ready: int) -> None:
        """Record how many replicas are ordered, and how many of them serve.

        The cluster is assumed to replace a replica that dies at once.
        """
        if self._ready is None:
            self._ready, self._orders_s = ready, [-math.inf] * max(0, ordered - ready)
            self._tracked_since_s = now_s
        self._became_ready_s.extend([now_s] * max(0, ready - self._ready))
        self._ready = ready
        self._match(now_s)
        # The orders of replicas that are ready stay until their first report.
        open_orders = max(0, ordered - ready) + len(self._became_ready_s)
        del self._orders_s[open_orders:]
        self._orders_s += [now_s] * (open_orders - len(self._orders_s))

    def observe(
        self,
        replica_id: str,
        start_time_s: float,
        serving_since_s: float | None = None,
        tier: int = 0,
    ) -> None:
        """Record the start time that a replica reports, and the tier that had its weights.

        With its first report comes when it began to serve, on the clock of `track`.
        """
        if serving_since_s is not None and serving_since_s > self._tracked_since_s:
            created_s = serving_since_s - start_time_s
            self._first_reports.append((replica_id, created_s, serving_since_s))
        if self._reported_s.get(replica_id) == start_time_s:
            return
        self._reported_s[replica_id], self._tiers[replica_id] = start_time_s, tier
        if len(self._reported_s) > _KEPT:
            oldest = next(iter(self._reported_s))
            del self._reported_s[oldest], self._tiers[oldest]
            self._waits_s.pop(oldest, None)
        self._horizon_s = None

    def _match(self, now_s: float) -> None:
        """Find the orders that the replicas with a first report have filled."""
        while self._became_ready_s and self._first_reports:
            self._became_ready_s.popleft()
            replica_id, created_s, _ = self._first_reports.popleft()
            self._fill(replica_id, created_s)
        while self._first_reports and self._first_reports[0][2] < now_s - _MATCHED_WITHIN_S:
            self._first_reports.popleft()
        while self._became_ready_s and self._became_ready_s[0] < now_s - _MATCHED_WITHIN_S:
            # It does not report, and nobody knows which order it filled.
            self._became_ready_s.popleft()
            self._fill_one_of(len(self._orders_s))

    def _fill(self, replica_id: str, created_s: float) -> None:
        """Match an order from before a replica's creation; measure its wait if it is certain."""
        orders_s = self._orders_s
        before = sum(order_s <= created_s + _EARLY_S for order_s in orders_s)
        if before and orders_s[0] == orders_s[before - 1] > -math.inf:
            wait_s = max(0.0, created_s - orders_s[0])
            if replica_id in self._reported_s:
                self._waits_s[replica_id] = self._plausible(replica_id, wait_s)
                self._horizon_s = None
        self._fill_one_of(before or len(orders_s))

    def _fill_one_of(self, count: int) -> None:
        """Remove one of the oldest orders; if they differ, it is unknown which of them are left."""
        taken_s = self._orders_s[:count]
        if len(set(taken_s)) > 1:
            self._orders_s[:count] = [-math.inf] * count
        del self._orders_s[:1]

    def _plausible(self, replica_id: str, wait_s: float) -> float:
        """Limit a wait so that the start takes no longer than one that did not fail."""
        limit_s = _FAILED_FACTOR * self.horizon_s
        if len(self._waits_s) < 3:
            # An order may wait for hours for a free machine.
            limit_s = max(_MAX_FIRST_S, limit_s)
        return min(wait_s, max(0.0, limit_s - self._reported_s[replica_id]))

    @property
    def horizon_s(self) -> float:
        """The median of the start times from the expected tier; a default until one is known.

        Of an even number it is the upper one, so that of two starts the slower counts.
        """
        if self._horizon_s is None:
            expected = statistics.median_high([*self._tiers.values()][-_LATEST:])
            self._horizon_s = self._median_s(expected)
        return self._horizon_s

    def _median_s(self, tier: int) -> float:
        typical_s = statistics.median(self._waits_s.values()) if self._waits_s else 0.0
        return statistics.median_high(
            reported_s + self._waits_s.get(replica_id, typical_s)
            for replica_id, reported_s in self._reported_s.items()
            if self._tiers[replica_id] == tier
        )

    def by_tier_s(self) -> dict[str, float]:
        """Return the median start time from each tier that is known."""
        codes = sorted({code for code in self._tiers.values() if 1 <= code <= len(WEIGHTS_TIERS)})
        return {WEIGHTS_TIERS[code - 1]: self._median_s(code) for code in codes}

    def state_dict(self) -> dict[str, Any]:
        """Return by replica the start times reported, tiers, and waits as far as certain."""
        return {
            "reported_s": dict(self._reported_s),
            "tiers": dict(self._tiers),
            "waits_s": dict(self._waits_s),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "StartTimes":
        """Make one from what `state_dict` returned."""
        restored = cls()
        for replica_id, start_time_s in state["reported_s"].items():
            tier = int(state["tiers"][replica_id])
            restored.observe(str(replica_id), float(start_time_s), tier=tier)
        for replica_id, wait_s in state["waits_s"].items():
            if replica_id in restored._reported_s:
                restored._waits_s[replica_id] = float(wait_s)
        return restored
