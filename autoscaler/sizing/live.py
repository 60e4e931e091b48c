"""Sizing for a fleet that runs: it must have an answer, also where the SLA has none."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoscaler.reports import ReplicaReport
from autoscaler.sizing.estimators import FullBatchEstimator, TryDelays, least_replicas
from policy.errors import InfeasibleError
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective


@dataclass(frozen=True)
class MedianReplica:
    """What one replica does, by what the replicas report under one SLA.

    Attributes
    ----------
    objective : ServiceLevelObjective
    batch_size, batch_ms : float
        A full batch, and the time that it takes.
    curve : LoadLatenessCurve or None
        None where the replicas have none: not yet, or because the SLA is out of reach.
    out_of_reach : bool
        Whether the replicas know that no rate meets the SLA.
    """

    objective: ServiceLevelObjective
    batch_size: float
    batch_ms: float
    curve: LoadLatenessCurve | None
    out_of_reach: bool = False


def median_replicas(reports: Iterable[ReplicaReport]) -> tuple[MedianReplica, ...]:
    """Give the capability of the median replica under each SLA in force.

    While the SLA is changing there are two. Replicas may disagree on their curve, as each refits
    its profile to what its own device does; the median is that of a replica, not of numbers.
    """
    by_sla: dict[tuple[float, float], list[ReplicaReport]] = {}
    for report in reports:
        key = (report.sla_response_time_ms, report.sla_percentile)
        by_sla.setdefault(key, []).append(report)
    return tuple(_median_replica(group) for group in by_sla.values())


def _median_replica(group: Sequence[ReplicaReport]) -> MedianReplica:
    # Where the SLA is out of reach, the rate within it is 0.
    known = [report for report in group if report.sla_rate_per_s or report.out_of_reach]
    known.sort(key=lambda report: report.sla_rate_per_s)
    median = known[(len(known) - 1) // 2] if known else None
    return MedianReplica(
        objective=group[0].objective,
        batch_size=statistics.median([report.full_batch_size for report in group]),
        batch_ms=statistics.median([report.full_batch_ms for report in group]),
        curve=median.curve if median else None,
        out_of_reach=median.out_of_reach if median else False,
    )


@dataclass(frozen=True)
class LiveSizing:
    """The least replicas for a demand, and what a number of replicas makes of it.

    By the replicas' own curves where they have them. Else by Theorem 2 over full batches, which
    needs no more than a full batch's time and asks for more replicas.

    Attributes
    ----------
    median_replicas : tuple of MedianReplica
        One per SLA in force; that which needs most counts.
    delays : TryDelays
    correction : float
        What the SLA rate of the curves is multiplied by.
    low, high : int
        Bounds of the replicas.
    """

    median_replicas: tuple[MedianReplica, ...]
    delays: TryDelays
    correction: float
    low: int
    high: int

    def required(self, demand_per_s: float) -> tuple[int, str]:
        """Give the least replicas, and a remark on what cannot be met."""
        most, remark = self.low, ""
        for one in self.median_replicas:
            found, said = self._required(one, demand_per_s)
            most, remark = max(most, found), remark or said
        if most > self.high:
            return self.high, remark or f"; more than {self.high} would be needed"
        return most, remark

    def sla_rate_per_s(self) -> float | None:
        """Give what one replica takes under the SLAs in force, corrected; None if not known."""
        rates = [one.curve.sla_rate_per_s for one in self.median_replicas if one.curve]
        return self.correction * min(rates) if rates else None

    def service_level(self, demand_per_s: float, replicas: int) -> float:
        """Predict it; of several SLAs, the lowest."""
        return min(self._service_level(one, demand_per_s, replicas) for one in self.median_replicas)

    def _required(self, one: MedianReplica, demand_per_s: float) -> tuple[int, str]:
        if one.curve is not None:
            return one.curve.replicas_needed(demand_per_s / self.correction), ""
        estimator = self._estimator(one)
        aim, remark = one.objective, ""
        try:
            estimator.check_feasible(aim)
            feasible = not one.out_of_reach
        except InfeasibleError:
            feasible = False
        if not feasible:
            remark = f"; {aim.in_words()} is out of reach with any number of replicas"
            aim = self._without_lateness(one)
        try:
            return least_replicas(estimator, demand_per_s, aim, 1, self.high).replicas, remark
        except InfeasibleError:
            return self.high + 1, remark

    def _service_level(self, one: MedianReplica, demand_per_s: float, replicas: int) -> float:
        if one.curve is not None:
            return one.curve.service_level(demand_per_s / replicas / self.correction)
        return self._estimator(one).predict(demand_per_s, replicas, one.objective).service_level

    def _estimator(self, one: MedianReplica) -> FullBatchEstimator:
        return FullBatchEstimator(1e3 * one.batch_size / one.batch_ms, one.batch_ms, self.delays)

    def _without_lateness(self, one: MedianReplica) -> ServiceLevelObjective:
        """Relax the SLA until only what is refused for good misses it: no overload, at least."""
        delays = self.delays
        latest_ms = delays.request_delay_ms + one.batch_ms + (delays.retries or 0) * delays.try_ms
        return ServiceLevelObjective(latest_ms, one.objective.percentile)
