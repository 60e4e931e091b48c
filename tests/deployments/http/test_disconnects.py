"""Disconnects are noticed; a request that is answered at once costs no task."""

import asyncio

import pytest
from starlette.types import Message

from deployments.http import app
from deployments.http.app import DisconnectWatch


class Client:
    """A client that waits for its answer until `leaves` is set."""

    def __init__(self, watch: DisconnectWatch) -> None:
        self.listened_to = False
        self.leaves = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(asyncio.Event().wait())
        watch.add(self.task, self.receive)

    async def receive(self) -> Message:
        self.listened_to = True
        await self.leaves.wait()
        return {"type": "http.disconnect"}


@pytest.fixture(autouse=True)
def _check_at_every_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "CHECK_PERIOD_S", 0)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_only_the_task_of_the_client_that_leaves_is_cancelled() -> None:
    watch = DisconnectWatch()
    leaver, stayer = Client(watch), Client(watch)
    await turns()
    leaver.leaves.set()
    await turns()
    assert leaver.task.cancelled()
    assert not stayer.task.done()
    watch.remove(leaver.task)
    watch.remove(stayer.task)
    stayer.task.cancel()


async def test_a_disconnect_before_the_listener_starts_is_noticed() -> None:
    watch = DisconnectWatch()
    leaver = Client(watch)
    leaver.leaves.set()
    await turns()
    assert leaver.task.cancelled()


@pytest.mark.parametrize("waited", [0, 1])
async def test_a_request_answered_within_a_period_costs_no_task(waited: int) -> None:
    watch = DisconnectWatch()
    client = Client(watch)
    await turns(waited)
    watch.remove(client.task)
    await turns()
    assert not client.listened_to
    client.task.cancel()


async def test_a_removed_request_is_not_cancelled() -> None:
    watch = DisconnectWatch()
    client = Client(watch)
    await turns()
    assert client.listened_to
    watch.remove(client.task)
    client.leaves.set()
    await turns()
    assert not client.task.done()
    client.task.cancel()


async def test_no_timer_and_no_task_remain_without_requests() -> None:
    watch = DisconnectWatch()
    for _ in range(3):
        clients = [Client(watch) for _ in range(5)]
        await turns()
        for client in clients:
            watch.remove(client.task)
            client.task.cancel()
        await turns()
        assert watch._timer is None
        assert asyncio.all_tasks() == {asyncio.current_task()}
