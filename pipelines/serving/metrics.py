"""The metrics of a pipeline, in Prometheus' text format, for ``GET /metrics``."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipelines.pipeline_core import PipelineCore

_GAUGES = {
    "queue_length": ("Items that wait.", "waiting"),
    "in_service": ("Items that are with a worker.", "in_service"),
    "workers": ("Workers that can run batches.", "workers"),
    "busy_workers": ("Workers with a batch.", "busy"),
}
_COUNTERS = {
    "items": ("Items that arrived.", "items"),
    "batches": ("Batches started.", "batches"),
    "workers_lost": ("Batches whose worker died or hung.", "deaths"),
    "busy_seconds": ("Time of all batches together.", "busy_s"),
}
_OUTCOMES = ("completed", "failed", "late", "refused", "cancelled")


class _Stages(Collector):
    """Reads the counts when it is asked, so that counting costs nothing."""

    def __init__(self, pipeline: str, core: PipelineCore) -> None:
        self._pipeline, self._core = pipeline, core

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        labels = ["pipeline", "stage"]
        for name, (text, attribute) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"sojourn_stage_{name}", text, labels=labels)
            for stage in self._core.stages:
                gauge.add_metric([self._pipeline, stage.name], getattr(stage, attribute))
            yield gauge
        for name, (text, attribute) in _COUNTERS.items():
            counter = CounterMetricFamily(f"sojourn_stage_{name}", text, labels=labels)
            for stage in self._core.stages:
                counter.add_metric([self._pipeline, stage.name], getattr(stage, attribute))
            yield counter
        pending = GaugeMetricFamily(
            "sojourn_pipeline_open_requests", "Requests in the pipeline.", labels=labels[:1]
        )
        pending.add_metric([self._pipeline], len(self._core.open))
        yield pending
        requests = CounterMetricFamily(
            "sojourn_pipeline_requests", "Requests by outcome.", labels=["pipeline", "outcome"]
        )
        for outcome in _OUTCOMES:
            requests.add_metric([self._pipeline, outcome], getattr(self._core, outcome))
        yield requests


def metrics_text(pipeline: str, core: PipelineCore) -> bytes:
    """Return the metrics of a pipeline.

    Parameters
    ----------
    pipeline : str
        Its name, the label of every metric.
    core : PipelineCore
    """
    registry = CollectorRegistry()
    registry.register(_Stages(pipeline, core))
    return generate_latest(registry)
