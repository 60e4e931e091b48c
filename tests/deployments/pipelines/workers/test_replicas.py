import asyncio
import contextlib
import socket

import pytest

from deployments.errors import DeviceError, StartError
from deployments.pipelines.core.errors import WorkerLostError
from deployments.pipelines.workers import replicas
from deployments.pipelines.workers.batch_server import SUFFIX, BatchServer
from deployments.pipelines.workers.child import BATCH, MESSAGE
from deployments.pipelines.workers.predictor import make_predictor
from deployments.pipelines.workers.replicas import ReplicaAccess
from sojourn import Pipeline, Stage, StageError
from tests.support.pipelines.stages import Batched, Gate
from tests.support.waiting import LIMIT_S, until


def serve(code, folder):
    return BatchServer(make_predictor(Stage(code, batch_size=9)), folder)


def pipeline_with(access, **options):
    options = {"batch_size": 4, "place": "deployment", **options}
    return Pipeline([Stage("unused:here", "stage", **options)], replicas={"stage": access})


def only_in(folder):
    return ReplicaAccess(folder, call=None, any_runs=asyncio.Event().wait)


@contextlib.asynccontextmanager
async def served(code, folder, count=1):
    servers = [serve(code, folder) for _ in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            await asyncio.to_thread(server.close, 1.0)


async def test_new_replicas_are_found_and_one_that_retires_loses_no_request(tmp_path):
    gate = Gate()
    async with (
        served(gate, tmp_path) as (leaving,),
        pipeline_with(only_in(tmp_path), batch_size=1) as pipeline,
    ):
        stage = pipeline.core.stages[0]
        tasks = [asyncio.create_task(pipeline.predict(v)) for v in range(20)]
        await until(lambda: len(gate.begun) == 1)
        async with served(gate, tmp_path, count=2):
            await until(lambda: len(gate.begun) == 3)
            leaving.retire()
            gate.open.set()
            assert await asyncio.gather(*tasks) == [*range(20)]
            await until(lambda: stage.workers == 2)
            assert stage.deaths == 0
            await asyncio.to_thread(leaving.close, 5.0)
            assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.slow
async def test_a_hanging_replica_is_given_up(tmp_path):
    gate = Gate()
    async with served(gate, tmp_path, count=2):
        access = only_in(tmp_path)
        async with pipeline_with(access, hang_after_s=0.2, batch_size=1) as pipeline:
            await until(lambda: pipeline.core.stages[0].workers == 2)
            with pytest.raises(StageError, match=r"took more than 0\.2 s for a batch"):
                await pipeline.predict(1)
            # Each reads its batch, however late.
            await until(lambda: gate.begun == [[1], [1]])
            assert pipeline.core.stages[0].workers == 0
            gate.open.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_replica_that_can_serve_no_more_is_known_and_another_one_takes_over(tmp_path):
    async with served(Batched, tmp_path, count=2) as servers:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(servers[0]._path))
            client.send(MESSAGE.pack(BATCH, 0))  # without arenas
            await until(lambda: servers[0].failed)
        async with pipeline_with(only_in(tmp_path)) as pipeline:
            assert await pipeline.predict(1) == (1, 1)
        assert not servers[1].failed


async def test_without_a_replica_what_waits_is_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(replicas, "_LOST_S", 0.1)
    async with served(Batched, tmp_path) as (server,):
        pipeline = pipeline_with(only_in(tmp_path))
        await pipeline.start()
        await asyncio.to_thread(server.close, 1.0)
    with pytest.raises(DeviceError, match="stage 'stage': it has no replica"):
        await asyncio.wait_for(pipeline.predict(1), LIMIT_S)
    with pytest.raises(DeviceError):  # refused at once
        pipeline.submit(1)
    dead = tmp_path / f"dead{SUFFIX}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(dead))
    async with served(Batched, tmp_path):
        await until(lambda: pipeline.core.stages[0].lost is None and not dead.exists())
        assert await pipeline.predict(2) == (2, 1)
    await pipeline.close()


async def test_a_folder_that_others_could_write_to_is_not_used(tmp_path):
    async with served(Batched, tmp_path):
        tmp_path.chmod(0o770)
        with pytest.raises(StartError, match="this user alone"):
            serve(Batched, tmp_path)
        with pytest.raises(StartError, match="this user alone"):
            await pipeline_with(only_in(tmp_path)).start()


class TestOnOtherMachines:
    @pytest.fixture(autouse=True)
    def _hurry(self, monkeypatch):
        monkeypatch.setattr(replicas, "_GRACE_S", 0.01)

    async def test_when_the_last_replica_here_has_gone_those_elsewhere_are_called(self, tmp_path):
        asked = 0

        async def any_runs():
            nonlocal asked
            asked += 1
            if asked == 2:
                raise ValueError("not now")

        async def call(items):
            return ["called"] * len(items)

        access = ReplicaAccess(tmp_path, call, any_runs)
        async with (
            served(Batched, tmp_path) as (server,),
            pipeline_with(access, workers=3) as pipeline,
        ):
            await until(lambda: pipeline.core.stages[0].workers == 1)
            for _ in range(2):
                assert await pipeline.predict(1) == (1, 1)
                before = asked
                await asyncio.to_thread(server.close, 1.0)
                assert await asyncio.wait_for(pipeline.predict(2), LIMIT_S) == "called"
                assert asked > before
                # One that comes here again is preferred again.
                server = serve(Batched, tmp_path)
                await until(lambda: pipeline.core.stages[0].workers == 1)
            await asyncio.to_thread(server.close, 1.0)

    async def test_the_loss_of_a_replica_an_error_and_a_hang(self, tmp_path):
        calls = []

        async def call(items):
            calls.append(items)
            if items == [3]:
                await asyncio.sleep(2 * LIMIT_S)
            if items == [2]:
                raise ValueError("two")
            raise WorkerLostError("the actor died")

        async def any_runs():
            await asyncio.sleep(0)

        access = ReplicaAccess(tmp_path, call, any_runs)
        async with pipeline_with(access, hang_after_s=0.2) as pipeline:
            with pytest.raises(StageError, match="stage 'stage' died: the actor died"):
                await pipeline.predict(1)
            assert calls == [[1], [1]]
            with pytest.raises(StageError, match="ValueError: two"):
                await pipeline.predict(2)
            with pytest.raises(StageError, match="took more than"):
                await asyncio.wait_for(pipeline.predict(3), LIMIT_S)
