"""The article's example, and its faults as regression tests.

"Service Batching from Scratch, Again" (2020) describes stages with their own workers and batches.
Its code has the faults that the tests name.
"""

import asyncio
import time

import pytest

from deployments.pipelines.core.items import Flow, Item
from deployments.pipelines.core.stage_core import StageCore
from policy.batching_policy import BatchingPolicy
from sojourn import Pipeline, Stage, StageError
from tests.support.pipelines.stages import Batched, DiesOnce, FailsOnNegative, Scale, shift
from tests.support.waiting import LIMIT_S


def in_threads(*, max_wait_ms=0.0):
    return Pipeline([Stage(Batched, place="thread", batch_size=4, max_wait_ms=max_wait_ms)])


@pytest.mark.slow
async def test_the_example():
    async with Pipeline([Stage(Scale, workers=2), Stage(shift)]) as service:
        assert await service.predict(3) == 9
        results = await asyncio.gather(*(service.predict(v) for v in range(10)))
    assert results == [2 * v + 3 for v in range(10)]


async def test_a_result_for_a_cancelled_request_does_not_stop_the_gathering():
    """`set_result` on a cancelled future raised, and ended the task that gathers results."""
    async with in_threads() as pipeline:
        for _ in range(20):
            tasks = [asyncio.create_task(pipeline.predict(v)) for v in range(8)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.wait(tasks)
            assert [task.result()[0] for task in tasks[1::2]] == [1, 3, 5, 7]


async def test_a_request_takes_much_less_than_a_poll():
    """A request and its result were each up to 8 ms late.

    On a busy machine most are; without a poll, one is not, sooner or later.
    """
    async with Pipeline([Stage(shift, place="thread")]) as pipeline, asyncio.timeout(LIMIT_S):
        took_s = 1.0
        while took_s >= 0.004:
            started_s = time.perf_counter()
            await pipeline.predict(1)
            took_s = time.perf_counter() - started_s


async def test_errors_are_not_starved_by_results():
    """Errors were looked for only while there was no result."""
    async with Pipeline([Stage(FailsOnNegative, place="thread", batch_size=2)]) as pipeline:
        running = True

        async def results_keep_coming():
            while running:
                await pipeline.predict(1)

        others = [asyncio.create_task(results_keep_coming()) for _ in range(20)]
        with pytest.raises(StageError, match="negative"):
            await asyncio.wait_for(pipeline.predict(-1), LIMIT_S)
        running = False
        await asyncio.gather(*others)


def test_the_wait_is_for_the_whole_batch():
    """It was counted between items: the first could wait for the size times the wait."""
    core = StageCore("s", BatchingPolicy.from_control_limit(10, 10, 100.0), workers=1)
    for now_s in (0.0, 0.099):
        core.arrive(now_s, Item(Flow(0, now_s)))
        assert core.next_batch(now_s) is None
        assert core.wake_at_s == pytest.approx(0.1)
    assert len(core.next_batch(0.1).items) == 2


@pytest.mark.slow
async def test_a_dead_worker_leaves_no_request_waiting(tmp_path):
    """Nothing noticed that a worker had died; its requests waited for ever."""
    flag = tmp_path / "die"
    flag.touch()
    stage = Stage(DiesOnce, options={"path": str(flag)}, batch_size=8)
    async with Pipeline([stage]) as pipeline:
        requests = asyncio.gather(*(pipeline.predict(v) for v in range(8)))
        results = await asyncio.wait_for(requests, LIMIT_S)
    assert [value for value, _ in results] == list(range(8))
