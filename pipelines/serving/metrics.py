"""The metrics of a pipeline: what is counted, and as Prometheus' text for ``GET /metrics``.

Without Ray, Prometheus scrapes the text. Under Ray, `pipelines.serving.ray_metrics` passes the same
samples on. docs/pipelines.md lists the metrics.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipelines.pipeline_core import PipelineCore

_STAGE, _PIPELINE, _OUTCOME = ("pipeline", "stage"), ("pipeline",), ("pipeline", "outcome")
_OUTCOMES = ("completed", "failed", "late", "refused", "cancelled")


@dataclass(frozen=True)
class StageMetric:
    """One metric of a pipeline.

    Attributes
    ----------
    name : str
        Without the ``_total`` of a counter.
    text : str
        Its description.
    labels : tuple of str
    is_counter : bool
        Whether it only grows; otherwise it is a gauge.
    samples : callable
        From the core to pairs of the labels after ``pipeline`` and the value.
    """

    name: str
    text: str
    labels: tuple[str, ...]
    is_counter: bool
    samples: Callable[[PipelineCore], list[tuple[tuple[str, ...], float]]]


def _of_stages(name: str, text: str, attribute: str, is_counter: bool) -> StageMetric:
    def samples(core: PipelineCore) -> list[tuple[tuple[str, ...], float]]:
        return [((stage.name,), float(getattr(stage, attribute))) for stage in core.stages]

    return StageMetric(f"sojourn_stage_{name}", text, _STAGE, is_counter, samples)


METRICS = (
    _of_stages("queue_length", "Items that wait.", "waiting", False),
    _of_stages("in_service", "Items that are with a worker.", "in_service", False),
    _of_stages("workers", "Workers that can run batches.", "workers", False),
    _of_stages("busy_workers", "Workers with a batch.", "busy", False),
    _of_stages("items", "Items that arrived.", "items", True),
    _of_stages("batches", "Batches started.", "batches", True),
    _of_stages("workers_lost", "Batches whose worker died or hung.", "deaths", True),
    _of_stages("busy_seconds", "Time of all batches together.", "busy_s", True),
    StageMetric(
        "sojourn_pipeline_open_requests",
        "Requests in the pipeline.",
        _PIPELINE,
        False,
        lambda core: [((), float(len(core.open)))],
    ),
    StageMetric(
        "sojourn_pipeline_expected_seconds",
        "About how long a request admitted now would take.",
        _PIPELINE,
        False,
        lambda core: [((), 1e-3 * core.expected_ms())],
    ),
    StageMetric(
        "sojourn_pipeline_requests",
        "Requests by what became of them.",
        _OUTCOME,
        True,
        lambda core: [((outcome,), float(getattr(core, outcome))) for outcome in _OUTCOMES],
    ),
)


class _Stages(Collector):
    """Reads the counts when it is asked, so that counting costs nothing."""

    def __init__(self, pipeline: str, core: PipelineCore) -> None:
        self._pipeline, self._core = pipeline, core

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        for metric in METRICS:
            family: Any = (CounterMetricFamily if metric.is_counter else GaugeMetricFamily)(
                metric.name, metric.text, labels=metric.labels
            )
            for labels, value in metric.samples(self._core):
                family.add_metric([self._pipeline, *labels], value)
            yield family


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
