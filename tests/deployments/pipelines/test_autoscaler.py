"""Stages of a running pipeline are resized as the load at the front asks for."""

import asyncio
import time

import pytest

from deployments.pipelines import autoscaler as autoscaler_module
from deployments.pipelines.autoscaler import PipelineAutoscaler
from deployments.pipelines.planning.scaling import DivisionTable, StageScaler
from deployments.pipelines.workers.replicas import ReplicaAccess
from sojourn import Each, Pipeline, Stage
from tests.support.pipelines.stage_replica import serve
from tests.support.pipelines.stages import Scale, shift
from tests.support.waiting import until


def shift_all(items):
    """Shift each of a list."""
    return [shift(item) for item in items]


async def test_it_resizes_the_stages_that_need_it():
    table = DivisionTable((100.0, 1000.0), ({"scale": 1, "shift": 1}, {"scale": 3, "shift": 1}))
    steps = [Stage(Scale, place="thread"), Stage(shift, place="loop")]
    async with Pipeline(steps) as pipeline:
        autoscaler = PipelineAutoscaler(
            pipeline, StageScaler(table, margin=1.0, scale_down_delay_s=10.0)
        )
        now_s = time.monotonic()
        await asyncio.gather(*(pipeline.predict(v) for v in range(50)))
        autoscaler.step(now_s + 1)  # 50 per second
        assert autoscaler.workers == {"scale": 1, "shift": 1}
        await asyncio.gather(*(pipeline.predict(v) for v in range(200)))
        autoscaler.step(now_s + 2)
        assert autoscaler.workers == {"scale": 3, "shift": 1}
        while pipeline.core.stages[0].workers < 3:
            await asyncio.sleep(0.001)
        for second in range(3, 14):
            autoscaler.step(now_s + second)
        assert autoscaler.workers == {"scale": 1, "shift": 1}
        assert pipeline.core.stages[0].workers == 1
        assert await pipeline.predict(1) == 5


async def test_the_items_of_a_request_are_measured():
    """Elements of an `Each` count for the stage that they reach, and for no other."""
    table = DivisionTable((1e3, 2e3), ({"a": 1, "b": 1}, {"a": 1, "b": 2}), {"b": 2.0})
    steps = [Stage(shift_all, "a", place="loop"), Each(Stage(shift, "b", place="loop"))]
    async with Pipeline(steps) as pipeline:
        autoscaler = PipelineAutoscaler(pipeline, StageScaler(table))
        now_s = time.monotonic()
        await asyncio.gather(*(pipeline.predict([v] * 5) for v in range(50)))
        autoscaler.step(now_s + 1)
        assert autoscaler.items_per_request == {"a": 1.0, "b": 5.0}
        for second in range(2, 30):
            await asyncio.gather(*(pipeline.predict([v]) for v in range(100)))
            autoscaler.step(now_s + second)
        assert 1.0 <= autoscaler.items_per_request["b"] < 1.01
        # Seconds without a request change nothing.
        before = {**autoscaler.items_per_request}
        autoscaler.step(now_s + 30)
        assert autoscaler.items_per_request == before


async def test_stages_with_ray_replicas_are_left_to_ray(tmp_path):
    table = DivisionTable((100.0, 300.0), ({"a": 1, "b": 1}, {"a": 3, "b": 2}))
    server = serve(shift, tmp_path, lists=False)
    steps = [Stage(shift, "a", place="deployment"), Stage(shift, "b", place="thread")]
    try:
        async with Pipeline(steps, replicas={"a": ReplicaAccess(tmp_path)}) as pipeline:
            autoscaler = PipelineAutoscaler(pipeline, StageScaler(table, margin=1.0))
            now_s = time.monotonic()
            await asyncio.gather(*(pipeline.predict(v) for v in range(200)))
            autoscaler.step(now_s + 1)
            assert autoscaler.workers == {"a": 3, "b": 2}
            needs = autoscaler.replica_needs()
            # Half of the way from what one replica carries to what three do.
            assert needs == {"": pytest.approx(2 / 3, rel=0.1), "a": pytest.approx(2.5, rel=0.1)}
    finally:
        await asyncio.to_thread(server.close, 1.0)


async def test_a_step_that_fails_is_not_the_last(monkeypatch):
    monkeypatch.setattr(autoscaler_module, "PERIOD_S", 0.001)
    table = DivisionTable((100.0,), ({"shift": 1},))
    async with Pipeline([Stage(shift, place="loop")]) as pipeline:
        autoscaler = PipelineAutoscaler(pipeline, StageScaler(table))
        steps: list[float] = []

        def fail(now_s):
            steps.append(now_s)
            raise ValueError("this time")

        monkeypatch.setattr(autoscaler, "step", fail)
        running = asyncio.create_task(autoscaler.run())
        await until(lambda: len(steps) > 1)
        running.cancel()
