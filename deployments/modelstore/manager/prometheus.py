"""The manager's counters as Prometheus metrics."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_Family = type[CounterMetricFamily] | type[GaugeMetricFamily]

_TOTALS: dict[str, tuple[_Family, str]] = {
    "opens": (CounterMetricFamily, "Requests to open a model."),
    "refused": (CounterMetricFamily, "Opens that were refused."),
    "leases": (GaugeMetricFamily, "Models held by processes."),
    "waiting": (GaugeMetricFamily, "Opens that wait for their model."),
}
_BY_TIER: dict[str, tuple[_Family, str]] = {
    "hits": (CounterMetricFamily, "Opens that found the whole model in the tier."),
    "misses": (CounterMetricFamily, "Opens that did not."),
    "evictions": (CounterMetricFamily, "Blobs that left the tier."),
    "used_bytes": (GaugeMetricFamily, "Bytes in the tier or being copied into it."),
    "budget_bytes": (GaugeMetricFamily, "Bytes that the tier may hold."),
}


def exposition(stats: Mapping[str, Any]) -> str:
    """Return the metrics `sojourn_store_*` of `StoreCore.stats` in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_StatsCollector(stats))
    return generate_latest(registry).decode()


class _StatsCollector(Collector):
    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        for name, (kind, text) in _TOTALS.items():
            yield kind(f"sojourn_store_{name}", text, stats[name])
        for name, (kind, text) in _BY_TIER.items():
            family = kind(f"sojourn_store_{name}", text, labels=["tier"])
            for tier, row in stats["tiers"].items():
                family.add_metric([tier], row[name])
            yield family
        labels = ["source", "target"]
        copied = CounterMetricFamily("sojourn_store_copied_bytes", "Bytes copied.", labels=labels)
        took = CounterMetricFamily("sojourn_store_copy_seconds", "Time of copies.", labels=labels)
        for row in stats["copies"]:
            copied.add_metric([row["source"], row["target"]], row["bytes"])
            took.add_metric([row["source"], row["target"]], row["seconds"])
        yield copied
        yield took
