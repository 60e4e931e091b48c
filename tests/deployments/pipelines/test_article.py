"""The article's example, and a fault of its code as a regression test.

"Service Batching from Scratch, Again" (2020) describes stages with their own workers and batches.
"""

import asyncio

import pytest

from sojourn import Pipeline, Stage
from tests.support.pipelines.stages import Batched, Scale, shift


@pytest.mark.slow
async def test_the_example():
    async with Pipeline([Stage(Scale, workers=2), Stage(shift)]) as service:
        assert await service.predict(3) == 9
        results = await asyncio.gather(*(service.predict(v) for v in range(10)))
    assert results == [2 * v + 3 for v in range(10)]


async def test_a_result_for_a_cancelled_request_does_not_stop_the_gathering():
    """`set_result` on a cancelled future raised, and ended the task that gathers results."""
    async with Pipeline([Stage(Batched, place="thread", batch_size=4)]) as pipeline:
        for _ in range(20):
            tasks = [asyncio.create_task(pipeline.predict(v)) for v in range(8)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.wait(tasks)
            assert [task.result()[0] for task in tasks[1::2]] == [1, 3, 5, 7]
