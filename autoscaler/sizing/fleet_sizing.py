"""Sizing of a running fleet from its replicas' reports.

Unlike the search for a plan, it always has an answer, even if no number of replicas can keep the
SLA.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from autoscaler.reports import ReplicaReport
from autoscaler.sizing.rand_fleet import RandFleet
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective
from policy.tables.power import PowerTable, in_words_under
from policy.try_delays import TryDelays

#: Without a load-lateness curve, the share of the capacity in full batches that replicas are given.
_UTILIZATION = 0.8


class Fleet(Protocol):
    """A model of replicas that serve together; rates are requests per second."""

    @property
    def capacity_per_s(self) -> float:
        """The rate of a replica that runs full batches without a pause."""

    def lost_share(self, arrival_rate_per_s: float, replicas: int) -> float:
        """Return the fraction of the requests that are not answered in time."""

    def rate_within_sla_per_s(self, late_share_allowed: float, replicas: int) -> float:
        """Return the highest rate within the SLA, for each replica."""

    def replicas_needed(self, arrival_rate_per_s: float, late_share_allowed: float) -> int:
        """Return the least replicas that take a rate within the SLA."""


@dataclass(frozen=True)
class MedianReplica:
    """The median replica of those under the SLA that most of them report.

    `batch_size` and `batch_ms` are of a full batch. The curve is None if the replicas do not have
    one: not yet, or because no rate keeps the SLA (`out_of_reach`). Under a ceiling on the power of
    all replicas, `power_limit_w`, the power table says how many of them answer soonest.
    """

    objective: ServiceLevelObjective
    batch_size: float
    batch_ms: float
    curve: LoadLatenessCurve | None
    out_of_reach: bool = False
    limited_by_device: bool = True
    delays: TryDelays = field(default_factory=TryDelays)
    power_limit_w: float = 0.0
    power_table: PowerTable | None = None

    @property
    def capacity_per_s(self) -> float:
        """The rate of the device in full batches, in requests per second."""
        return 1e3 * self.batch_size / self.batch_ms


def median_replica(reports: Sequence[ReplicaReport]) -> MedianReplica:
    """Return the median replica under the SLA that most replicas report; there must be one.

    There are two SLAs while one is being changed. Replicas may report different curves, because
    each refits its profile to its own device. The median is one replica's whole curve, and not a
    mixture of several.
    """
    slas = [(report.sla_response_time_ms, report.sla_percentile) for report in reports]
    sla = statistics.mode(slas)
    group = [report for report, own in zip(reports, slas, strict=True) if own == sla]
    # A replica that cannot keep the SLA at any rate sorts as one with a rate of 0.
    known = [report for report in group if report.sla_rate_per_s or report.out_of_reach]
    known.sort(key=lambda report: report.sla_rate_per_s)
    median = known[(len(known) - 1) // 2] if known else None
    with_power = next((report for report in group if report.powers), None)
    return MedianReplica(
        objective=group[0].objective,
        batch_size=statistics.median([report.full_batch_size for report in group]),
        batch_ms=statistics.median([report.full_batch_ms for report in group]),
        curve=median.curve if median else None,
        out_of_reach=median.out_of_reach if median else False,
        limited_by_device=median is None or median.bottleneck in (None, "device"),
        delays=(median or group[0]).delays,
        power_limit_w=with_power.power_limit_w if with_power else 0.0,
        power_table=with_power.power_table if with_power else None,
    )


@dataclass(frozen=True)
class Requirement:
    """The least replicas that keep the SLA, and a remark if the bounds leave too few."""

    replicas: int
    remark: str = ""
    is_limited: bool = False


@dataclass(frozen=True)
class FleetSizing:
    """The replicas that a demand requires, and the service level that a number of them reaches.

    RAND decides (`autoscaler.sizing.rand_fleet`), with the replicas' own load-lateness curve, its
    rate corrected by a factor (`autoscaler.sizing.sla_rate_correction`). Until the curve is known,
    or if no rate keeps the SLA, replicas are given a share of their capacity in full batches, so
    that they carry the load. `fleet` decides in the place of RAND. What power replicas take follows
    from the load that is offered, not from what the demand allows for; None: from the demand.
    """

    replica: MedianReplica
    correction: float
    min_replicas: int
    max_replicas: int
    delays: TryDelays
    fleet: Fleet | None = None
    offered_per_s: float | None = None

    def required(self, demand_per_s: float) -> Requirement:
        """Return the replicas that a demand requires."""
        remark = ""
        if self.replica.out_of_reach:
            words = self.replica.objective.in_words()
            remark = f"; {words} is out of reach with any number of replicas"
        needed = self._needed(demand_per_s)
        table, limit_w = self.replica.power_table, self.replica.power_limit_w
        if table is not None:
            rate_per_s = demand_per_s if self.offered_per_s is None else self.offered_per_s
            within, multiple = table.replicas_within(limit_w, rate_per_s, needed)
            if multiple != 1:
                words = in_words_under(limit_w, self.replica.objective, multiple)
                required = min(max(self.min_replicas, within), self.max_replicas)
                return Requirement(required, f"; {words}", is_limited=True)
        required = max(self.min_replicas, needed)
        if required > self.max_replicas:
            remark = remark or f"; more than {self.max_replicas} replicas would be needed"
            return Requirement(self.max_replicas, remark, is_limited=True)
        return Requirement(required, remark)

    def _needed(self, demand_per_s: float) -> int:
        fleet = self._fleet
        if fleet is not None:
            allowed = self.replica.objective.late_share_allowed
            return fleet.replicas_needed(demand_per_s / self.correction, allowed)
        return max(1, math.ceil(demand_per_s / (_UTILIZATION * self.replica.capacity_per_s)))

    @cached_property
    def _fleet(self) -> Fleet | None:
        replica = self.replica
        if self.fleet is not None or replica.curve is None:
            return self.fleet
        return RandFleet.of(
            replica.curve,
            replica.capacity_per_s,
            replica.objective.after(self.delays.round_trip_ms),
            self.delays,
            limited_by_device=replica.limited_by_device,
        )

    def sla_rate_per_s(self) -> float | None:
        """Return the highest rate within the SLA of one replica, corrected; None if unknown."""
        curve = self.replica.curve
        return None if curve is None else self.correction * curve.sla_rate_per_s

    def capacity_per_s(self) -> float | None:
        """Return what a full replica accepts per second, corrected; None if that is unknown."""
        return None if self._fleet is None else self.correction * self._fleet.capacity_per_s

    def needed_without_retries(self, demand_per_s: float) -> int | None:
        """Return what a demand would require if no refusal were retried; None if unknown."""
        curve = self.replica.curve
        return None if curve is None else curve.replicas_needed(demand_per_s / self.correction)

    def fleet_rate_per_s(self, replicas: int) -> float | None:
        """Return what some replicas together take within the SLA; None if that is unknown."""
        if self._fleet is None:
            return None
        allowed = self.replica.objective.late_share_allowed
        per_replica_s = self._fleet.rate_within_sla_per_s(allowed, replicas)
        return replicas * self.correction * per_replica_s

    def service_level(self, demand_per_s: float, replicas: int) -> float:
        """Predict the fraction of requests in time."""
        if self._fleet is not None:
            return 1 - self._fleet.lost_share(demand_per_s / self.correction, replicas)
        if self.replica.out_of_reach or demand_per_s <= 0:
            return 0.0 if self.replica.out_of_reach else 1.0
        return min(1.0, replicas * self.replica.capacity_per_s / demand_per_s)
