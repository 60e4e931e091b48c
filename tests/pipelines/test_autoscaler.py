"""Stages of a running pipeline are resized as the load at the front asks for."""

import asyncio
import time

from pipelines import Pipeline, Stage
from pipelines.autoscaler import PipelineAutoscaler
from pipelines.planning.scaling import DivisionTable, StageScaler
from tests.support.pipeline_stages import Scale, shift


async def test_it_resizes_the_stages_that_need_it():
    table = DivisionTable((100.0, 1000.0), ({"scale": 1, "shift": 1}, {"scale": 3, "shift": 1}))
    steps = [Stage(Scale, place="thread"), Stage(shift, place="loop")]
    async with Pipeline(steps) as pipeline:
        autoscaler = PipelineAutoscaler(pipeline, StageScaler(table, margin=1.0, hold_s=10.0))
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
