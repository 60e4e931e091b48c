"""The live pipeline, with workers in threads and on the event loop."""

import asyncio

import numpy as np
import pytest

from deployments.errors import BusyError, DeadlineError, DeviceError, StartError
from deployments.pipelines.workers import pool
from deployments.pipelines.workers.factory import ThreadWorker
from policy.errors import InvalidInputError
from sojourn import Ensemble, Pipeline, Stage, StageError
from tests.support.pipelines.stages import Batched, Gate, Scale, shift
from tests.support.waiting import LIMIT_S, until


async def test_requests_of_one_turn_of_the_loop_share_a_batch():
    async with Pipeline([Stage(Batched, place="loop", batch_size=8)]) as pipeline:
        results = await asyncio.gather(*(pipeline.predict(v) for v in range(12)))
    assert results == [(v, 8 if v < 8 else 4) for v in range(12)]


async def test_a_stream_keeps_the_order_and_bounds_what_it_takes():
    taken = []

    def values():
        for value in range(200):
            taken.append(value)
            yield value

    async with Pipeline([Stage(Scale, place="thread", workers=3)]) as pipeline:
        seen = []
        async for result in pipeline.stream(values(), in_flight=5):
            seen.append(result)
            assert len(taken) < len(seen) + 5
    assert seen == [2 * value for value in range(200)]


async def test_a_reader_may_stop_and_a_source_may_fail():
    def values():
        yield 1
        yield 2
        raise ValueError("the source ended")

    async with Pipeline([Stage(shift, place="loop")]) as pipeline:
        stream = pipeline.stream(values())
        assert [await anext(stream), await anext(stream)] == [4, 5]
        with pytest.raises(ValueError, match="the source ended"):
            await anext(stream)


async def test_what_a_reader_that_stops_has_sent_is_cancelled():
    gate = Gate()

    def code(x):  # in a thread
        return gate.predict(x) if x else x

    async with Pipeline([Stage(code, "code", place="thread")]) as pipeline:
        stream = pipeline.stream(range(4))
        assert await anext(stream) == 0
        await until(lambda: len(pipeline.core.open) == 3)
        await stream.aclose()
        assert not pipeline.core.open
        gate.open.set()


async def test_results_of_a_live_source_do_not_wait_for_its_next_value():
    results: asyncio.Queue[int] = asyncio.Queue()

    async def values():
        yield 1
        assert await asyncio.wait_for(results.get(), LIMIT_S) == 4
        yield 2

    async with Pipeline([Stage(shift, place="loop")]) as pipeline:
        seen = []
        async for result in pipeline.stream(values()):
            results.put_nowait(result)
            seen.append(result)
    assert seen == [4, 5]


@pytest.mark.parametrize("place", ["thread", "loop", "process"])
async def test_a_stage_may_write_into_its_inputs(place):
    def subtract(batch):
        for x in batch:
            x["x"] -= 1
        if len(batch) > 1:
            raise ValueError("some item")
        return batch

    value = {"x": np.arange(3.0)}
    value["x"].flags.writeable = False
    stages = [Stage(subtract, name, place=place, batch_size=4) for name in "ab"]
    async with Pipeline([Ensemble([*stages, []])]) as pipeline:
        for left, right, same in await asyncio.gather(*(pipeline.predict(value) for _ in range(5))):
            assert left["x"].tolist() == right["x"].tolist() == [-1, 0, 1]
            assert same["x"].tolist() == [0, 1, 2]


async def test_a_deadline_passes_in_the_queue_or_in_a_batch():
    gate = Gate()
    async with Pipeline([Stage(gate, place="thread")]) as pipeline:
        # So long that its batch has begun before, even on a machine that stands still for a while.
        in_batch = asyncio.create_task(pipeline.predict(1, timeout_ms=500))
        await until(lambda: gate.begun == [1])
        waiting = asyncio.create_task(pipeline.predict(2, timeout_ms=10))
        for task in (in_batch, waiting):
            with pytest.raises(DeadlineError):
                await task
        gate.open.set()
        assert await pipeline.predict(3) == 3
    assert gate.begun == [1, 3]


async def test_cancelled_requests_leave_their_places_and_a_drain_ends_with_the_last_request():
    gate = Gate()
    async with Pipeline([Stage(gate, place="thread")]) as pipeline:
        tasks = [asyncio.create_task(pipeline.predict(v)) for v in range(4)]
        await until(lambda: gate.begun == [0])
        drained = asyncio.create_task(pipeline.drain())
        for task in tasks[::2]:  # one in its batch, and one that waits
            task.cancel()
        gate.open.set()
        assert await asyncio.gather(*tasks[1::2]) == [1, 3]
        await asyncio.wait_for(drained, LIMIT_S)
        assert gate.begun == [0, 1, 3]


@pytest.mark.parametrize(("failures", "lost"), [(2, 0), (4, 1)])
async def test_a_thread_that_does_not_start_is_started_again(monkeypatch, failures, lost):
    monkeypatch.setattr(pool, "_MAX_DELAY_S", 0.001)
    gate, made = Gate(), []

    class Hangs:
        def __init__(self):
            made.append(self)
            if 1 < len(made) <= 1 + failures:
                raise OSError("no weights")

        def predict(self, x):
            return gate.predict(x) if x < 0 else x

    async with Pipeline([Stage(Hangs, place="thread", hang_after_s=0.3)]) as pipeline:
        hanging = asyncio.create_task(pipeline.predict(-1))
        with pytest.raises(DeviceError if lost else StageError):
            await asyncio.wait_for(hanging, LIMIT_S)
        await until(lambda: pipeline.core.stages[0].workers == 1)
        assert await asyncio.wait_for(pipeline.predict(1), LIMIT_S) == 1
        gate.open.set()


@pytest.mark.parametrize("place", ["thread", "loop"])
async def test_a_worker_survives_system_exit(place):
    """On the event loop it ended the service."""

    def leave(x):
        raise SystemExit

    async with Pipeline([Stage(leave, place=place)]) as pipeline:
        for value in range(2):
            with pytest.raises(StageError, match="SystemExit"):
                await pipeline.predict(value)


async def test_a_batch_that_cannot_be_run_fails_and_gives_its_worker_back(monkeypatch):
    async with Pipeline([Stage(shift, place="thread")]) as pipeline:
        with monkeypatch.context() as broken:
            broken.setattr(ThreadWorker, "run", lambda worker, batch: [][0])
            with pytest.raises(StageError, match="IndexError"):
                await asyncio.wait_for(pipeline.predict(1), LIMIT_S)
        assert await asyncio.wait_for(pipeline.predict(1), LIMIT_S) == 4


@pytest.mark.parametrize("place", ["thread", "loop"])
async def test_a_stage_that_does_not_start(place):
    class Broken:
        def __init__(self, error):
            raise error

    for error in (OSError("no weights"), SystemExit("no licence")):
        broken = Stage(Broken, options={"error": error}, place=place)
        with pytest.raises(StartError, match=rf"stage 'broken': .* {error}"):
            await Pipeline([Stage(shift, place="loop"), broken]).start()


async def test_a_closed_pipeline_answers_what_it_has_and_takes_no_more():
    gate = Gate()
    pipeline = Pipeline([Stage(gate, place="thread")], max_pending=2)
    with pytest.raises(BusyError):
        await pipeline.predict(1)
    await pipeline.start()
    with pytest.raises(InvalidInputError):
        await pipeline.start()

    async def collect():
        return [y async for y in pipeline.stream(range(3), in_flight=3)]

    ends = pipeline.predict(1), collect(), collect()
    tasks = [asyncio.create_task(end) for end in ends]
    await until(lambda: len(pipeline.core.open) == 2)
    await pipeline.close()
    gate.open.set()
    done, _ = await asyncio.wait(tasks, timeout=LIMIT_S)
    assert len(done) == 3
    assert all(isinstance(task.exception(), BusyError) for task in done)
    with pytest.raises(BusyError):
        await pipeline.predict(2)
    with pytest.raises(InvalidInputError, match="in_flight"):
        pipeline.stream([], in_flight=0)


async def test_more_and_fewer_workers_while_it_runs():
    gate = Gate()
    async with Pipeline([Stage(gate, "gate", place="thread")]) as pipeline:
        core = pipeline.core.stages[0]
        pipeline.resize("gate", 3)
        await until(lambda: core.workers == 3)
        tasks = [asyncio.create_task(pipeline.predict(v)) for v in range(8)]
        await until(lambda: len(gate.begun) == 3)
        pipeline.resize("gate", 1)
        assert (core.workers, core.busy) == (1, 3)
        gate.open.set()
        assert await asyncio.gather(*tasks) == [*range(8)]
        workers = pipeline._workers._workers[0]
        assert isinstance(workers, pool.WorkerPool)
        assert (len(workers._free), len(workers._busy)) == (1, 0)


async def test_what_cannot_be_resized():
    async with Pipeline([Stage(shift, place="loop")]) as pipeline:
        for name, workers, complaint in [
            ("shift", 2, "place loop has one worker"),
            ("shift", 0, "at least 1"),
            ("other", 1, "the stages are shift"),
        ]:
            with pytest.raises(InvalidInputError, match=complaint):
                pipeline.resize(name, workers)
