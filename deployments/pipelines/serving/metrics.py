"""The metrics of a pipeline; Prometheus scrapes them, and Ray exports them as well."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from autoscaler.metrics import Instrument
from deployments.control.response_times import PERCENTILES
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.serving.service import PipelineService

#: The values of a metric by its labels after the first, which is the pipeline.
Reading = list[tuple[tuple[str, ...], float]]

#: Window of percentiles, in seconds.
_RECENT_S = 10.0
OUTCOMES = ("completed", "failed", "late", "refused", "cancelled")


@dataclass(frozen=True)
class PipelineInstrument(Instrument):
    read: Callable[[PipelineService], Reading] = lambda service: []


def measured_ms(core: PipelineCore) -> dict[str, float]:
    """Return percentiles of the response time of the latest ten seconds, in ms."""
    since_s = time.monotonic() - _RECENT_S
    recent = [ms for at_s, ms in core.response_times if at_s > since_s]
    if not recent:
        return {}
    values_ms = np.percentile(recent, PERCENTILES).tolist()
    return {f"{rank:g}": ms for rank, ms in zip(PERCENTILES, values_ms, strict=True)}


def _instrument(
    name: str, description: str, labels: tuple[str, ...], read: Callable[[PipelineService], Reading]
) -> PipelineInstrument:
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    labels = ("pipeline", *labels)
    return PipelineInstrument(f"sojourn_{name}", kind, description, labels, read=read)


def _stages(name: str, description: str, attribute: str) -> PipelineInstrument:
    def read(service: PipelineService) -> Reading:
        stages = service.pipeline.core.stages
        return [((stage.name,), float(getattr(stage, attribute))) for stage in stages]

    return _instrument(f"stage_{name}", description, ("stage",), read)


def _whole(
    name: str,
    description: str,
    read: Callable[[PipelineService], Mapping[Any, float]],
    *labels: str,
) -> PipelineInstrument:
    def values(service: PipelineService) -> Reading:
        return [((key,) if labels else (), float(v)) for key, v in read(service).items()]

    return _instrument(f"pipeline_{name}", description, labels, values)


PIPELINE_INSTRUMENTS = (
    _stages("queue_length_items", "Items that wait.", "waiting"),
    _stages("in_service_items", "Items that are with a worker.", "in_service"),
    _stages("workers", "Workers that can run batches.", "workers"),
    _stages("busy_workers", "Workers with a batch.", "busy"),
    _stages("items_total", "Items that arrived.", "items"),
    _stages("completed_items_total", "Items that were computed.", "completed"),
    _stages("batches_total", "Batches started.", "batches"),
    _stages("batched_items_total", "Items in the batches that started.", "batched"),
    _stages("lost_workers_total", "Batches whose worker died or hung.", "deaths"),
    _stages("busy_seconds_total", "Time of all batches together.", "busy_s"),
    _stages(
        "believed_busy_seconds_total",
        "Time that these batches were believed to take, by the profile then in force.",
        "expected_s",
    ),
    _whole("open_requests", "Requests in the pipeline.", lambda s: {"": len(s.pipeline.core.open)}),
    _whole(
        "expected_response_time_seconds",
        "About how long a request admitted now would take.",
        lambda service: {"": 1e-3 * service.pipeline.core.expected_ms()},
    ),
    _whole(
        "measured_response_time_seconds",
        "Response time of the requests completed in the last ten seconds, by percentile.",
        lambda s: {key: 1e-3 * ms for key, ms in measured_ms(s.pipeline.core).items()},
        "percentile",
    ),
    _whole(
        "requests_total",
        "Requests by outcome.",
        lambda s: {outcome: getattr(s.pipeline.core, outcome) for outcome in OUTCOMES},
        "outcome",
    ),
    _whole(
        "config_rejected",
        "1 while the newest user_config is rejected and an older one is in force, with its tokens.",
        lambda service: {"": service.config_error is not None},
    ),
)


class _Pipeline(Collector):
    def __init__(self, service: PipelineService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        for given in PIPELINE_INSTRUMENTS:
            kind: Any = CounterMetricFamily if given.kind == "counter" else GaugeMetricFamily
            family = kind(given.name, given.description, labels=given.labels)
            for labels, value in given.read(self._service):
                family.add_metric([self._service.model_name, *labels], value)
            yield family


def metrics_text(service: PipelineService) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Pipeline(service))
    return generate_latest(registry)
