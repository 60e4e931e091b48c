"""The manager's counters as Prometheus metrics."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_TIER_COUNTERS = {
    "hits": "Opens that found the whole model in the tier.",
    "misses": "Opens that did not.",
    "evictions": "Blobs that left the tier.",
}
_TIER_GAUGES = {
    "used_bytes": "Bytes in the tier or being copied into it.",
    "budget_bytes": "Bytes that the tier may hold.",
}
_COUNTERS = {"opens": "Requests to open a model.", "refused": "Opens that were refused."}
_GAUGES = {"leases": "Models held by processes.", "waiting": "Opens that wait for their model."}


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
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"sojourn_store_{name}", text, stats[name])
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"sojourn_store_{name}", text, stats[name])
        for name, text in _TIER_COUNTERS.items():
            counter = CounterMetricFamily(f"sojourn_store_{name}", text, labels=["tier"])
            for tier, row in stats["tiers"].items():
                counter.add_metric([tier], row[name])
            yield counter
        for name, text in _TIER_GAUGES.items():
            gauge = GaugeMetricFamily(f"sojourn_store_{name}", text, labels=["tier"])
            for tier, row in stats["tiers"].items():
                gauge.add_metric([tier], row[name])
            yield gauge
        labels = ["source", "target"]
        copied = CounterMetricFamily("sojourn_store_copied_bytes", "Bytes copied.", labels=labels)
        took = CounterMetricFamily("sojourn_store_copy_seconds", "Time of copies.", labels=labels)
        for row in stats["copies"]:
            copied.add_metric([row["source"], row["target"]], row["bytes"])
            took.add_metric([row["source"], row["target"]], row["seconds"])
        yield copied
        yield took
