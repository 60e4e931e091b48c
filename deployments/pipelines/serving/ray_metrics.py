"""The metrics of a pipeline's replica, exported by Ray with the prefix `ray_`."""

from collections import defaultdict
from typing import Any

from ray.serve import metrics

from deployments.pipelines.pipeline_core import PipelineCore
from deployments.pipelines.serving.metrics import PIPELINE_INSTRUMENTS, PipelineInstrument


class RayPipelineMetrics:
    """Hands the values of `deployments.pipelines.serving.metrics` to Ray.

    Parameters
    ----------
    pipeline : str
        Its name, the label of every metric.
    core : PipelineCore
    """

    def __init__(self, pipeline: str, core: PipelineCore) -> None:
        self._pipeline, self._core = pipeline, core
        self._exported = [(given, _register(given)) for given in PIPELINE_INSTRUMENTS]
        self._flushed: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def flush(self) -> None:
        """Hand over what is true now; of counters, what has come since the last call."""
        for given, exported in self._exported:
            for labels, value in given.read(self._core):
                tags = dict(zip(given.labels, (self._pipeline, *labels), strict=True))
                key = (given.name, *labels)
                if given.kind == "gauge":
                    exported.set(value, tags)
                elif value > self._flushed[key]:
                    exported.inc(value - self._flushed[key], tags)
                    self._flushed[key] = value


def _register(given: PipelineInstrument) -> Any:
    """Return Ray's metric for an instrument."""
    kind = metrics.Counter if given.kind == "counter" else metrics.Gauge
    return kind(given.name, given.description, given.labels)
