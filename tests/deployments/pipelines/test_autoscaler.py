"""Stages of a running pipeline are resized as the load at the front asks for."""

import asyncio
import time

import pytest

from deployments.pipelines.autoscaler import PipelineAutoscaler
from deployments.pipelines.planning.scaling import DivisionTable, StageScaler
from deployments.pipelines.workers.replicas import ReplicaAccess
from sojourn import Pipeline, Stage
from tests.support.pipelines.stage_replica import serve
from tests.support.pipelines.stages import Scale, shift
from tests.support.waiting import until


async def test_it_resizes_the_stages_that_need_it():
    table = DivisionTable((100.0, 1000.0), ({"scale": 1, "shift": 1}, {"scale": 3, "shift": 1}))
    steps = [Stage(Scale, place="thread"), Stage(shift, place="loop")]
    async with Pipeline(steps) as pipeline:
        scaler = StageScaler(table, pipeline.core, scale_down_delay_s=10.0)
        autoscaler = PipelineAutoscaler(pipeline, scaler)
        now_s = time.monotonic()
        autoscaler.step(now_s)
        await asyncio.gather(*(pipeline.predict(v) for v in range(50)))
        autoscaler.step(now_s + 1)  # 50 per second
        assert autoscaler.scaler.workers == {"scale": 1, "shift": 1}
        await asyncio.gather(*(pipeline.predict(v) for v in range(200)))
        autoscaler.step(now_s + 2)
        assert autoscaler.scaler.workers == {"scale": 3, "shift": 1}
        while pipeline.core.stages[0].workers < 3:
            await asyncio.sleep(0.001)
        for second in range(3, 14):
            autoscaler.step(now_s + second)
        assert autoscaler.scaler.workers == {"scale": 1, "shift": 1}
        assert pipeline.core.stages[0].workers == 1
        assert await pipeline.predict(1) == 5


async def test_stages_with_ray_replicas_are_left_to_ray(tmp_path):
    table = DivisionTable((120.0, 360.0), ({"a": 1, "b": 1}, {"a": 3, "b": 2}))
    server = serve(shift, tmp_path, lists=False)
    steps = [Stage(shift, "a", place="deployment"), Stage(shift, "b", place="thread")]
    try:
        async with Pipeline(steps, replicas={"a": ReplicaAccess(tmp_path)}) as pipeline:
            autoscaler = PipelineAutoscaler(pipeline, StageScaler(table, pipeline.core))
            now_s = time.monotonic()
            autoscaler.step(now_s)
            await asyncio.gather(*(pipeline.predict(v) for v in range(200)))
            autoscaler.step(now_s + 1)
            assert autoscaler.scaler.workers == {"a": 3, "b": 2}
            needs = autoscaler.replica_needs()
            # Half of the way from what one replica carries to what three do.
            assert needs == {"": pytest.approx(2 / 3, rel=0.1), "a": pytest.approx(2.5, rel=0.1)}
    finally:
        await asyncio.to_thread(server.close, 1.0)


async def test_a_step_that_fails_is_not_the_last(monkeypatch):
    table = DivisionTable((100.0,), ({"shift": 1},))
    async with Pipeline([Stage(shift, place="loop")]) as pipeline:
        autoscaler = PipelineAutoscaler(pipeline, StageScaler(table, pipeline.core))
        steps: list[float] = []

        def fail(now_s):
            steps.append(now_s)
            raise ValueError("this time")

        monkeypatch.setattr(autoscaler, "step", fail)
        running = asyncio.create_task(autoscaler.run(0.001))
        await until(lambda: len(steps) > 1)
        running.cancel()
