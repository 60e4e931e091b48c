"""The latest reports of all replicas, summed up."""

import statistics
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.reports import ReplicaReport
from autoscaler.sizing.live import MedianReplica, median_replicas

#: Full batches per replica that may wait without counting as a backlog.
_NORMAL_BATCHES_WAITING = 2


@dataclass(frozen=True)
class LiveReports:
    """Figures of all timely reports together; they change only with a new report.

    Attributes
    ----------
    cutoff_s : float
        Time from which reports are timely.
    times_s : list of float
        When the reports of all replicas were recorded, timely or not, ascending.
    replicas : int
        Replicas with a timely report.
    median_replicas : tuple of MedianReplica
        One per SLA in force.
    backlog : float
        Requests in their queues beyond what is normal.
    bottleneck : str or None
        What limits most of them; None if unknown.
    """

    cutoff_s: float
    times_s: list[float]
    replicas: int
    median_replicas: tuple[MedianReplica, ...]
    backlog: float
    bottleneck: str | None

    @classmethod
    def of(cls, reports: Iterable[ReplicaReport], cutoff_s: float) -> "LiveReports":
        """Sum up the latest report of each replica."""
        reports = list(reports)
        live = [report for report in reports if report.time_s >= cutoff_s]
        limits = [limit for report in live if (limit := report.bottleneck)]
        return cls(
            cutoff_s=cutoff_s,
            times_s=sorted([report.time_s for report in reports]),
            replicas=len(live),
            median_replicas=median_replicas(live),
            backlog=sum(
                [
                    report.queue_length - _NORMAL_BATCHES_WAITING * report.full_batch_size
                    for report in live
                    if report.queue_length > _NORMAL_BATCHES_WAITING * report.full_batch_size
                ],
                start=0.0,
            ),
            bottleneck=statistics.mode(limits) if limits else None,
        )

    def reported_since(self, time_s: float) -> int:
        """Return how many replicas have reported since a time, timely or not."""
        return len(self.times_s) - bisect_left(self.times_s, time_s)
