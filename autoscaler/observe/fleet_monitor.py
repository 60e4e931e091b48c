"""The offered load, backlogs and SLA rate that the reports of a deployment's replicas show.

`FleetMonitor.observe` and `FleetMonitor.update` take in what is new. `FleetMonitor.status` is a
query: it changes nothing.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autoscaler.forecasting.load_history import LoadHistory
from autoscaler.observe.offered_load import OfferedLoad, RateHistory
from autoscaler.observe.overload import OverloadNeed, overload_need
from autoscaler.observe.replica_clocks import MAX_LAG_S, ReplicaClocks
from autoscaler.observe.start_times import StartTimes
from autoscaler.reports import ReplicaReport
from autoscaler.settings import AutoscalerSettings
from autoscaler.sizing.fleet_sizing import Fleet, FleetSizing, MedianReplica, median_replica
from autoscaler.sizing.sla_rate_correction import SlaRateCorrection

#: Reports should come every second. From this interval on, the load is noticed late.
SLOW_INTERVAL_S = 2.5
#: Reports older than this say nothing about the present.
_STALE_AFTER_S = 10.0
#: Nor do those older than this many intervals between reports, if reports come slowly.
_STALE_INTERVALS = 2.5
#: The number of latest intervals between reports, of which the median counts.
_INTERVALS_KEPT = 30
#: A replica that has not reported for this long is forgotten.
_FORGET_AFTER_S = 3600.0
#: Full batches per replica that may wait without counting as a backlog.
_NORMAL_BATCHES_WAITING = 2


@dataclass(frozen=True)
class FleetStatus:
    """The state of the fleet at one moment.

    `silent_replicas` serve and should report, but do not; `offered_per_s`, the mean over the rate
    window, and `backlog`, what waits beyond what is normal, include their share.
    `serving_per_known` is replicas that serve over those whose load is known or extrapolated, at
    least 1: the others are assumed to carry their share, too. `overload` is the rate to size for if
    requests are lost already.
    """

    replicas: int
    silent_replicas: int
    serving_per_known: float
    report_interval_s: float
    offered_per_s: float
    known_s: float
    backlog: float
    overload: OverloadNeed
    bottleneck: str | None


@dataclass(frozen=True)
class UnknownStatus:
    """The reports do not show the state of the fleet."""

    reason: str


@dataclass(frozen=True)
class _Live:
    """Sums over all timely reports of replicas that serve."""

    replicas: int
    median_replica: MedianReplica | None
    backlog: float
    bottleneck: str | None

    @classmethod
    def of(cls, reports: Iterable[ReplicaReport], cutoff_s: float, weight: float) -> "_Live":
        live = [one for one in reports if one.time_s >= cutoff_s and not one.standby]
        limits = [limit for report in live if (limit := report.bottleneck)]
        backlogs = (
            report.queue_length - _NORMAL_BATCHES_WAITING * report.full_batch_size
            for report in live
        )
        return cls(
            replicas=round(weight * len(live)),
            median_replica=median_replica(live) if live else None,
            backlog=weight * sum((backlog for backlog in backlogs if backlog > 0), start=0.0),
            bottleneck=statistics.mode(limits) if limits else None,
        )


class FleetMonitor:
    """The state of one deployment, learned from its replicas' reports."""

    def __init__(self, settings: AutoscalerSettings) -> None:
        self.settings = settings
        #: Decides in the place of RAND.
        self.fleet: Fleet | None = None
        self.load = OfferedLoad()
        self.history = LoadHistory()
        self.start_times = StartTimes()
        self.sla_correction = SlaRateCorrection()
        #: The newest report of each replica as it was read, before its time was corrected.
        self._read: dict[str, ReplicaReport] = {}
        self._clocks = ReplicaClocks()
        self._intervals_s: deque[float] = deque(maxlen=_INTERVALS_KEPT)
        #: Of the latest reports; None after a new one.
        self._live: _Live | None = None
        self._rates: RateHistory | None = None
        self._median_replica: MedianReplica | None = None
        #: How many replicas each report stands for.
        self._weight = 1.0
        #: The time of the first report, of whichever process.
        self.known_since_s = math.inf
        #: Replicas that should report, and replicas that serve.
        self._expected = self._serving = 0

    def observe(self, reports: Iterable[ReplicaReport], now_s: float, weight: float = 1.0) -> None:
        """Record reports, as `Autoscaler.observe` does."""
        self._weight = weight
        reports = list(reports)
        if weight > 1:
            # One that comes back into the sample begins anew: others stood for it meanwhile.
            for name in self.load.reports.keys() - {report.replica_id for report in reports}:
                self._forget(name)
        for report in reports:
            name = report.replica_id
            if self._read.get(name) is report:
                continue
            self._read[name] = report
            placed_s = self._clocks.place(report, now_s)
            if placed_s != report.time_s:
                report = replace(report, time_s=placed_s)
            newest_s, before = self.load.newest_s, self.load.reports.get(name)
            if not self.load.observe(report, weight):
                continue
            self.known_since_s = min(self.known_since_s, report.time_s)
            self._live = None
            if before is not None:
                self._intervals_s.append(report.time_s - before.time_s)
                if report.answered_total and report.sla_rate_per_s and not report.standby:
                    self.sla_correction.count_between(before, report)
            if report.settings is not None and report.time_s >= newest_s:
                self.settings = report.settings
            if report.start_time_s > 0:
                serving_since_s = report.time_s - report.counted_s if before is None else None
                self.start_times.observe(
                    name, report.start_time_s, serving_since_s, int(report.weights_tier_code)
                )

    def update(self, now_s: float, serving_replicas: int) -> None:
        """Learn from all reports, of which those of `serving_replicas` should come."""
        self._serving = serving_replicas
        self._expected = self.load.expect(now_s, serving_replicas)
        if self._is_stale(now_s):
            return
        for name, report in list(self.load.reports.items()):
            if report.time_s < now_s - _FORGET_AFTER_S:
                self._forget(name)
        if self._live is None:
            cutoff_s = min(self.load.newest_s, now_s) - MAX_LAG_S
            self._live = _Live.of(self.load.reports.values(), cutoff_s, self._weight)
        known_until_s = -math.inf if self.history.end_s is None else self.history.end_s
        settings = self.settings
        self._rates = self.load.history(now_s, settings.window_s, settings.retries, known_until_s)
        median = self._live.median_replica
        if self._rates is None or median is None:
            return
        self._median_replica = median
        sizing, replicas = self.sizing(), max(1, self._live.replicas)
        fleet_rate_per_s = sizing.fleet_rate_per_s(replicas)
        if median.curve is not None and fleet_rate_per_s is not None:
            self.sla_correction.revise(
                now_s,
                median.curve,
                median.objective.late_share_allowed,
                median.batch_size,
                settings.retries,
                fleet_rate_per_s / replicas / sizing.correction,
            )
        self.history.unserved_share = self.late_share_allowed
        self.history.observe(self._rates.end_s, self._rates.rates_per_s)

    def _forget(self, name: str) -> None:
        """Forget a replica, but keep its counts."""
        del self.load.reports[name], self._read[name]
        self._clocks.forget(name)
        self._live = None

    def status(self, now_s: float) -> FleetStatus | UnknownStatus:
        """Return the state of the fleet at the last update, or why it is unknown."""
        age_s = now_s - self.load.newest_s
        if math.isinf(age_s):
            return UnknownStatus("no replica has reported yet")
        if self._is_stale(now_s):
            return UnknownStatus(f"the newest report is {age_s:.0f} s old")
        live, rates = self._live, self._rates
        if live is None or not live.replicas or rates is None:
            return UnknownStatus("the arrival rate is not known yet")
        since_s = now_s - self._stale_after_s
        fresh = sum(one.time_s >= since_s and not one.standby for one in self.load.reports.values())
        reporting = round(self._weight * fresh)
        silent = max(0, self._expected - reporting)
        share_known = (self._expected - silent) / self._expected if silent else 1.0
        backlog = live.backlog / share_known
        return FleetStatus(
            replicas=reporting,
            silent_replicas=silent,
            serving_per_known=max(1.0, self._serving / max(live.replicas, self._expected)),
            report_interval_s=self._interval_s,
            offered_per_s=rates.current_per_s,
            known_s=now_s - self.known_since_s,
            backlog=backlog,
            overload=overload_need(
                rates.recent,
                self.sizing().capacity_per_s(),
                self.late_share_allowed,
                self.settings.retries,
                backlog,
            ),
            bottleneck=live.bottleneck,
        )

    @property
    def knows_replicas(self) -> bool:
        return self._median_replica is not None

    @property
    def late_share_allowed(self) -> float:
        """Fraction of the requests that may miss the SLA; replicas must have reported."""
        assert self._median_replica is not None
        return self._median_replica.objective.late_share_allowed

    def sizing(self, min_replicas: int = 1, max_replicas: int = 1) -> FleetSizing:
        """Return the sizing by the reports at the last update; there must have been some."""
        assert self._median_replica is not None
        return FleetSizing(
            self._median_replica,
            self.sla_correction.correction,
            min_replicas,
            max_replicas,
            replace(self._median_replica.delays, retries=self.settings.retries),
            self.fleet,
            None if self._rates is None else self._rates.current_per_s,
        )

    @property
    def _interval_s(self) -> float:
        return statistics.median(self._intervals_s) if self._intervals_s else 1.0

    @property
    def _stale_after_s(self) -> float:
        return max(_STALE_AFTER_S, _STALE_INTERVALS * self._interval_s)

    def _is_stale(self, now_s: float) -> bool:
        return now_s - self.load.newest_s > self._stale_after_s

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy what was learned, and return a function that packs it for `from_state`.

        The latest reports are left out, because new ones come every second.
        """
        copied = {
            "known_since_s": None if math.isinf(self.known_since_s) else self.known_since_s,
            "settings": self.settings.to_floats(),
            "start_times": self.start_times.state_dict(),
            "sla_correction": self.sla_correction.state_dict(),
        }
        history = self.history.snapshot()
        return lambda: {**copied, "history": history()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "FleetMonitor":
        """Make a monitor from what the function of a `snapshot` returned."""
        monitor = cls(AutoscalerSettings.from_floats(state["settings"]))
        since_s = state["known_since_s"]
        monitor.known_since_s = math.inf if since_s is None else float(since_s)
        monitor.history.load_state(state["history"])
        monitor.start_times = StartTimes.from_state(state["start_times"])
        monitor.sla_correction.load_state(state["sla_correction"])
        return monitor
