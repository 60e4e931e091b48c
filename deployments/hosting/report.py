"""What the autoscaler is told of a replica with several models: one report, in one unit.

A row of a model counts as the part of a replica that it takes: if a replica alone can take 100
rows/s of the first model within its SLA, and 50 of the second, a row of the second counts as two of
the first. The sum is right as far as the models' loads add up on the device; where they do not,
the late rows that are counted correct it, as they do for one model.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol
from weakref import WeakKeyDictionary

#: What only grows; the rest of a report is as it is now.
_COUNTERS = (
    *("offered_total", "refused_total", "completed_total", "answered_total", "late_total"),
    "refused_by_balancer_total",
)


class Reporting(Protocol):
    """A service, as far as it reports."""

    def autoscaling_stats(self) -> dict[str, float]:
        """Return its counters, gauges and settings."""


class CombinedReport:
    """The report of a replica whose services come and go. Its counters never fall.

    Parameters
    ----------
    clock : callable
        Returns the time in s.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self._totals = dict.fromkeys(_COUNTERS, 0.0)
        self._seen: WeakKeyDictionary[Reporting, dict[str, float]] = WeakKeyDictionary()
        self._first: Mapping[str, float] = {}

    def of(self, services: Iterable[Reporting]) -> dict[str, float]:
        """Return the report of the services that answer now, the first model's first."""
        first, *others = services
        if self._since_s is None:
            self._since_s = self._clock()
        report = self._first = first.autoscaling_stats()
        queue_length = report["queue_length"]
        self._count(first, report)
        for service in others:
            stats = service.autoscaling_stats()
            queue_length += stats["queue_length"] * self._count(service, stats)
        counted_s = self._clock() - self._since_s
        return {**report, **self._totals, "queue_length": queue_length, "counted_s": counted_s}

    def retired(self, service: Reporting) -> None:
        """Count what a service has done since the last report, before it is closed."""
        if self._first:
            self._count(service, service.autoscaling_stats())

    def _count(self, service: Reporting, stats: Mapping[str, float]) -> float:
        """Add what a service has counted since the last time; return what its rows count."""
        weight = _relative_cost(stats, self._first)
        before = self._seen.get(service, {})
        now = {name: stats[name] for name in _COUNTERS}
        for name, total in now.items():
            self._totals[name] += weight * (total - before.get(name, 0.0))
        self._seen[service] = now
        return weight


def _relative_cost(stats: Mapping[str, float], first: Mapping[str, float]) -> float:
    """Return how many rows of the first model a row counts as."""
    rates = first["sla_rate_per_s"], stats["sla_rate_per_s"]
    if min(rates) > 0:
        return rates[0] / rates[1]
    # The curve of one is not solved yet: by what full batches take.
    throughputs = [row["full_batch_size"] / row["full_batch_ms"] for row in (first, stats)]
    return throughputs[0] / throughputs[1]
