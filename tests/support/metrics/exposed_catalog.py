"""Every metric of the catalog with made-up values, as Prometheus would scrape them."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from autoscaler.metrics import DECISION_INSTRUMENTS, Instrument
from autoscaler.reports import BOTTLENECKS
from deployments.modelstore.core.store_core import StoreCore
from deployments.modelstore.manager.prometheus import exposition
from deployments.observability.replica_instruments import REPLICA_INSTRUMENTS
from deployments.pipelines.serving.metrics import PIPELINE_INSTRUMENTS

APPLICATION = "m"
#: The values of each label: there are two replicas.
LABELS: Mapping[str, tuple[str, ...]] = {
    "application": (APPLICATION,),
    "deployment": ("Replica",),
    "replica": ("a", "b"),
    "percentile": ("50", "95", "99"),
    "phase": ("imports", "model"),
    "pipeline": ("p",),
    "outcome": ("completed", "refused"),
    "reason": ("limit", "wait"),
    "stage": BOTTLENECKS,
    "status": ("200", "503"),
    "token": ("client",),
    "tier": ("host", "disk"),
    "source": ("disk",),
    "target": ("host",),
}
RAY_LABELS = ("application", "deployment", "replica")


class Catalog(Collector):
    """The metrics of two replicas, of the autoscaler and of a model store.

    Parameters
    ----------
    values : mapping of str to float
        The value of a gauge, or the rate of a counter, by name; 1 for the others. A name may end
        with a label's value in braces: ``sojourn_bottleneck{device}``.
    """

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values, self._started_s = values, time.monotonic()

    def collect(self) -> Iterator[Metric]:
        age_s = time.monotonic() - self._started_s
        for of_replicas in (*REPLICA_INSTRUMENTS, *PIPELINE_INSTRUMENTS):
            yield self._family("ray_", of_replicas, age_s, RAY_LABELS)
        for decisions in DECISION_INSTRUMENTS.values():
            yield self._family("ray_", decisions, age_s)
        for stores in store_instruments():
            yield self._family("", stores, age_s)

    def _family(
        self, prefix: str, given: Instrument, age_s: float, more: tuple[str, ...] = ()
    ) -> Metric:
        labels = [*given.labels, *more]
        family: Any = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
        }[given.kind](f"{prefix}{given.name}", given.description, labels=labels)
        for chosen in product(*(LABELS[label] for label in labels)):
            plain = self._values.get(given.name, 1.0)
            value = self._values.get(f"{given.name}{{{chosen[0]}}}" if chosen else "", plain)
            if given.kind == "histogram":
                least = [(str(bound), value * age_s) for bound in given.buckets]
                family.add_metric(chosen, [*least, ("+Inf", value * age_s)], 0.0)
            else:
                family.add_metric(chosen, value * age_s if given.kind == "counter" else value)
        made: Metric = family
        return made


def store_instruments() -> list[Instrument]:
    """Return the metrics of the model store's manager, read off its exposition."""
    found = []
    for line in exposition(StoreCore({}).stats()).splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            found.append(Instrument(name, kind, "Of the store.", _store_labels(name)))
    return found


def _store_labels(name: str) -> tuple[str, ...]:
    if "_cop" in name:
        return ("source", "target")
    tiered = ("hits", "misses", "evictions", "used_bytes", "budget_bytes")
    return ("tier",) if any(part in name for part in tiered) else ()


@contextmanager
def exposed(values: Mapping[str, float]) -> Iterator[str]:
    """Serve the catalog; yield its ``HOST:PORT``."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Catalog(values))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
