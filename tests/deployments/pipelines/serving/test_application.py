"""A pipeline's metrics, handed to recorders instead of Ray."""

import asyncio
import warnings

import pytest

from sojourn import Pipeline, Stage, StageError
from tests.support.pipelines.stages import Scale, shift

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray warns while it is imported
    from deployments.pipelines.serving import application


class Recorder:
    """A counter or gauge that keeps its values by tags."""

    by_name: dict[str, "Recorder"]

    def __init__(self, name, description, tag_keys):
        assert description
        self.tag_keys = tag_keys
        self.values: dict[tuple[str, ...], list[float]] = {}
        self.by_name[name] = self

    def set(self, value, tags):
        """Record a value."""
        assert tuple(tags) == tuple(self.tag_keys)
        self.values.setdefault(tuple(tags.values()), []).append(value)

    inc = set


@pytest.fixture
def recorded(monkeypatch):
    """Return the recorders by the metric's name."""
    Recorder.by_name = {}
    for kind in ("Counter", "Gauge"):
        monkeypatch.setattr(f"deployments.pipelines.serving.application.metrics.{kind}", Recorder)
    return Recorder.by_name


async def test_counters_are_handed_over_once_and_gauges_as_they_are(recorded):
    stages = [Stage(Scale, place="loop"), Stage(shift, place="loop")]
    async with Pipeline(stages) as pipeline:
        exported = application.RayPipelineMetrics("p", pipeline.core)
        for requests in (3, 0, 2):
            await asyncio.gather(*(pipeline.predict(v) for v in range(requests)))
            exported.flush()
        with pytest.raises(StageError):
            await pipeline.predict(None)
        exported.flush()
    assert recorded["sojourn_stage_items_total"].values == {
        ("p", "scale"): [3, 2, 1],
        ("p", "shift"): [3, 2],
    }
    assert recorded["sojourn_stage_workers"].values["p", "scale"] == [1, 1, 1, 1]
    assert recorded["sojourn_pipeline_requests_total"].values == {
        ("p", "completed"): [3, 2],
        ("p", "failed"): [1],
    }
    assert sum(recorded["sojourn_stage_busy_seconds_total"].values["p", "scale"]) == pytest.approx(
        pipeline.core.stages[0].busy_s
    )
