"""The metrics of a pipeline's replica, exported by Ray with the prefix `ray_`."""

from collections import defaultdict

from ray.serve import metrics

from pipelines.pipeline_core import PipelineCore
from pipelines.serving.metrics import METRICS, StageMetric


class RayPipelineMetrics:
    """Hands the samples of `pipelines.serving.metrics` to Ray.

    Parameters
    ----------
    pipeline : str
        Its name, the label of every metric.
    core : PipelineCore
    """

    def __init__(self, pipeline: str, core: PipelineCore) -> None:
        self._pipeline, self._core = pipeline, core
        self._flushed: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._made = [(metric, _make(metric)) for metric in METRICS]

    def flush(self) -> None:
        """Hand over what is true now; of counters, what has come since the last call."""
        for metric, made in self._made:
            for labels, value in metric.samples(self._core):
                tags = dict(zip(metric.labels, (self._pipeline, *labels), strict=True))
                if not metric.is_counter:
                    made.set(value, tags=tags)
                    continue
                key = (metric.name, *labels)
                if value > self._flushed[key]:
                    made.inc(value - self._flushed[key], tags=tags)
                    self._flushed[key] = value


def _make(metric: StageMetric) -> metrics.Counter | metrics.Gauge:
    if metric.is_counter:
        return metrics.Counter(
            f"{metric.name}_total", description=metric.text, tag_keys=metric.labels
        )
    return metrics.Gauge(metric.name, description=metric.text, tag_keys=metric.labels)
