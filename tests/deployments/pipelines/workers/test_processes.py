"""Worker processes: real ones, that die, hang, and send large arrays."""

import asyncio
import gc
import os
import signal
import subprocess
import threading
from functools import partial

import numpy as np
import pytest

from deployments.errors import StartError
from policy.errors import InvalidInputError
from sojourn import Ensemble, Pipeline, Stage, StageError
from tests.support.pipelines.stages import (
    DiesOnNegative,
    Exits,
    Gate,
    Scale,
    StartsOnce,
    Unsendable,
    WhereAmI,
    raises_odd,
)
from tests.support.waiting import LIMIT_S, until


async def test_a_worker_computes_in_one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    async with Pipeline([Stage(os.getenv, place="process")]) as pipeline:
        assert await pipeline.predict("OMP_NUM_THREADS") == "1"


async def test_a_worker_leaves_the_signals_of_a_stop_to_its_parent():
    """A worker that a service manager ended took its batch with it."""
    async with Pipeline([Stage(signal.getsignal, place="process")]) as pipeline:
        for number in (signal.SIGINT, signal.SIGTERM):
            assert await pipeline.predict(number) == signal.SIG_IGN


def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as listed:
        return {int(pid) for pid in listed.read().split()}


@pytest.mark.slow
async def test_what_goes_between_processes():
    array = np.arange(300_000.0).reshape(500, 600)
    stages = [Stage(Scale), Stage(Unsendable, place="thread")]
    before = children()
    async with Pipeline(stages) as pipeline:
        result = await pipeline.predict(array)
        np.testing.assert_array_equal(result, 2 * array)
        result[0, 0] = 5  # it is the caller's own
        await pipeline.predict(array)
        assert result[0, 0] == 5
        with pytest.raises(StageError, match="cannot be sent between processes"):
            await pipeline.predict(lambda: None)
        assert await pipeline.predict(1) == 2
        assert children() > before
    await until(lambda: children() <= before)


async def test_a_class_of_the_running_script_needs_no_module():
    class Local:
        def predict(self, x):
            if x < 0:
                return lambda: x
            return raises_odd(x)

    async with Pipeline([Stage(Local)]) as pipeline:
        with pytest.raises(StageError, match="UnpicklableError: OddError: two words"):
            await pipeline.predict(1)
        with pytest.raises(StageError, match="cannot be sent between processes"):
            await pipeline.predict(-1)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["process", "thread"])
async def test_each_worker_is_pinned_to_its_cpu_whatever_starts_and_ends(place):
    available = sorted(os.sched_getaffinity(0))
    cpus = [available[0], available[-1]]
    steps = [
        Ensemble([Stage(WhereAmI, place=place, cpus=cpus), Stage(WhereAmI, "free", place=place)])
    ]
    async with Pipeline(steps, cpus=cpus[:1]) as pipeline:
        assert os.sched_getaffinity(0) == {cpus[0]}

        def has(workers):
            return pipeline.core.stages[0].workers == workers

        for workers in (2, 1, 2):
            pipeline.resize("whereami", workers)
            await until(partial(has, workers))
            seen: set[tuple[int, ...]] = set()
            while len(seen) < min(workers, len({*cpus})):
                results = await asyncio.gather(*(pipeline.predict(0) for _ in range(10)))
                seen |= {tuple(pinned) for (_, pinned), _ in results}
                assert all(unpinned == available for _, (_, unpinned) in results)
            assert len(seen) == workers
            assert seen <= {(cpu,) for cpu in cpus}
        with pytest.raises(InvalidInputError, match="stage whereami: its cpus are for 2 workers"):
            pipeline.resize("whereami", 3)
    assert sorted(os.sched_getaffinity(0)) == available


@pytest.mark.slow
async def test_an_item_that_kills_its_worker_is_not_run_a_third_time_and_takes_no_other_with_it():
    async with Pipeline([Stage(DiesOnNegative, batch_size=4, workers=2)]) as pipeline:
        tasks = [asyncio.create_task(pipeline.predict(v)) for v in (1, 2, -3, 4)]
        await asyncio.wait(tasks)
        assert [task.result() for task in (*tasks[:2], tasks[3])] == [2, 4, 8]
        with pytest.raises(StageError, match="was killed by signal 9") as caught:
            await tasks[2]
        assert caught.value.stage == "diesonnegative"
        assert pipeline.core.stages[0].deaths == 2
        assert await pipeline.predict(5) == 10


@pytest.mark.slow
async def test_the_event_loop_does_not_wait_for_the_end_of_a_worker(monkeypatch):
    wait, threads = subprocess.Popen.wait, []

    def recorded(self, timeout=None):
        threads.append(threading.current_thread())
        return wait(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", recorded)
    async with Pipeline([Stage(Exits)]) as pipeline:
        with pytest.raises(StageError, match="ended with exit status 3"):
            await asyncio.wait_for(pipeline.predict(3), LIMIT_S)
    assert threads
    assert threading.main_thread() not in threads


async def test_a_stage_that_does_not_start_leaves_no_process():
    before = children()
    with pytest.raises(StartError, match=r"stage 'startsonce': .* no weights"):
        await Pipeline([Stage(StartsOnce, options={"path": "/nowhere"})]).start()
    await until(lambda: children() <= before)


async def test_code_that_cannot_be_sent_to_a_process_is_named():
    with pytest.raises(StartError, match=r"'gate': .* its code cannot be sent to a process"):
        await Pipeline([Stage(Gate())]).start()


@pytest.mark.slow
@pytest.mark.parametrize("call", ["subprocess.Popen", "os.memfd_create", "socket.socketpair"])
async def test_a_stage_that_the_machine_has_no_room_for_leaves_nothing(monkeypatch, call):
    async def start():
        with pytest.raises(StartError, match=r"did not start: .*no room"):
            await Pipeline([Stage(Scale)]).start()
        gc.collect()  # an error keeps what the failed call held
        return len(os.listdir("/proc/self/fd"))

    def no_room(*arguments, **options):
        raise OSError(24, "no room")

    monkeypatch.setattr(call, no_room)
    assert await start() == await start()
