"""A replica's metrics, exported by Ray.

The request path only appends to lists and counters. `flush` hands them to Ray once a second; Ray
exports them to the cluster's Prometheus, with the prefix `ray_`. Counters are exact; in a busy
second, histograms get a random sample.
"""

import asyncio
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import Any

from ray.serve import metrics

from autoscaler.metrics import Instrument
from deployments.control.observations import Observations
from deployments.observability.replica_instruments import REPLICA_INSTRUMENTS
from deployments.serving.service import InferenceService

#: Ray takes some 10 µs to observe a value, so recording every request would slow the event loop.
_MAX_OBSERVATIONS_PER_FLUSH = 100
#: After this many values, waiting requests run first.
_VALUES_PER_TURN = 10
#: Metrics of all services of a replica together.
_SHARED = {"sojourn_admitted_requests_total", "sojourn_denied_requests_total"}


class ReplicaMetrics:
    """The metrics of one `InferenceService`, configured before the first `flush`."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._exporter = RayExporter(REPLICA_INSTRUMENTS)

    def use(self, service: InferenceService) -> None:
        """Continue with another version of the model, whose own counters begin at 0."""
        self._service = service
        self._exporter.restart(_SHARED)

    async def flush(self, seen: Observations) -> None:
        """Pass the observations since the last call to Ray, yielding to requests."""
        seen = seen.sampled(_MAX_OBSERVATIONS_PER_FLUSH)
        handed = 0
        for given in REPLICA_INSTRUMENTS:
            for labels, value in given.read(self._service, seen):
                handed += 1
                if handed % _VALUES_PER_TURN == 0:
                    await asyncio.sleep(0)
                self._exporter.export(given, labels, value)


class RayExporter:
    """Passes values to Ray: gauges, samples of histograms, and the increments of counters."""

    def __init__(self, instruments: Iterable[Instrument]) -> None:
        self._exported = {given.name: _register(given) for given in instruments}
        self._flushed: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def restart(self, kept: Container[str]) -> None:
        """Reset the counters to 0, except those with the names in `kept`."""
        for key in [key for key in self._flushed if key[0] not in kept]:
            del self._flushed[key]

    def export(self, given: Instrument, labels: Sequence[str], value: float) -> None:
        """Pass a value; that of a counter is its total."""
        exported = self._exported[given.name]
        if given.kind == "histogram":
            exported.observe(value)
            return
        tags = dict(zip(given.labels, labels, strict=True))
        if given.kind == "gauge":
            exported.set(value, tags)
            return
        key = (given.name, *labels)
        if value > self._flushed[key]:
            exported.inc(value - self._flushed[key], tags)
            self._flushed[key] = value


def _register(given: Instrument) -> Any:
    if given.kind == "histogram":
        return metrics.Histogram(given.name, given.description, list(given.buckets), given.labels)
    kind = metrics.Counter if given.kind == "counter" else metrics.Gauge
    return kind(given.name, given.description, given.labels)
