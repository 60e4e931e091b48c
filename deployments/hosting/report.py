"""The report of a replica with several models to the autoscaler, in one unit.

A row of a model counts as the share of a replica that it uses. If a replica can serve 100 rows/s of
the first model within its SLA, and 50 of the second, a row of the second counts as two rows of the
first. The sum is right as far as the models' loads add up on the device. Otherwise the measured
late rows correct it, as they do for one model.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol
from weakref import WeakKeyDictionary

#: Counters, which only grow; other values are gauges.
_COUNTERS = (
    *("offered_total", "refused_total", "refused_by_balancer_total"),
    *("answered_total", "late_total"),
)


class Reporting(Protocol):
    """The reporting side of a service."""

    def autoscaling_stats(self) -> dict[str, float]: ...


class CombinedReport:
    """The report of a replica whose services change. Its counters never fall."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self._totals = dict.fromkeys(_COUNTERS, 0.0)
        self._seen: WeakKeyDictionary[Reporting, dict[str, float]] = WeakKeyDictionary()
        self._first: Mapping[str, float] = {}

    def of(self, services: Iterable[Reporting]) -> dict[str, float]:
        """Return the combined report of the active services, the first model's first."""
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
        """Count a service's rows since the last report, before it closes."""
        if self._first:
            self._count(service, service.autoscaling_stats())

    def _count(self, service: Reporting, stats: Mapping[str, float]) -> float:
        """Add a service's counts since the last report; return the weight of its rows."""
        weight = _relative_cost(stats, self._first)
        before = self._seen.get(service, {})
        now = {name: stats[name] for name in _COUNTERS}
        for name, total in now.items():
            self._totals[name] += weight * (total - before.get(name, 0.0))
        self._seen[service] = now
        return weight


def _relative_cost(stats: Mapping[str, float], first: Mapping[str, float]) -> float:
    """Return the weight of a row in rows of the first model."""
    rates = first["sla_rate_per_s"], stats["sla_rate_per_s"]
    if min(rates) > 0:
        return rates[0] / rates[1]
    # Before a curve is solved, use the times of full batches.
    throughputs = [row["full_batch_size"] / row["full_batch_ms"] for row in (first, stats)]
    return throughputs[0] / throughputs[1]
