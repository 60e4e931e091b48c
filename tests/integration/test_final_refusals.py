"""Tries per request where all replicas are full: real HAProxy, and replicas that count.

What a replica can take is reckoned by when requests were due, which they say. So it does not matter
for how long this machine stands still.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from deployments.haproxy.alone import haproxy
from deployments.haproxy.only_replica import OTHERS_HEADER, status_on_wire
from deployments.haproxy.view import HaproxyView
from deployments.http.retry_budget import ALL_UP_TO, RetryBudget
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.integration

CAPACITY_PER_S = 60.0
OFFERED_PER_S = 240.0
#: Requests that an idle replica answers at once.
BURST = 20.0
CLIENTS = 12
LEARNS_S, MEASURED_S = 3.0, 3.0
#: As often as a replica looks.
TICK_S = 1.0
#: Says when a request was due.
DUE = "due"


class Replica:
    """Answers `per_s` requests a second, and refuses the others as a replica does."""

    def __init__(self, port: int, socket: Path, name: str, *, per_s: float, learns: bool) -> None:
        self.port, self.tries_due_s = port, list[float]()
        self.has_learnt = False
        self._retries = RetryBudget()
        self._per_s, self._learns = per_s, learns
        self._view = HaproxyView(name, socket)
        self._room, self._looked_s = BURST, 0.0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        tasks: list[asyncio.Task[None]] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    writer.write(
                        b"HTTP/1.1 %d x\r\nContent-Length: 2\r\n\r\nok" % self._status(head)
                    )
            except asyncio.IncompleteReadError:
                writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", self.port)
        watching = [asyncio.create_task(one) for one in (self._view.watch(), self._learn())]
        try:
            yield
        finally:
            for one in watching:
                one.cancel()
            server.close()
            await asyncio.gather(*tasks, *watching, return_exceptions=True)

    async def _learn(self) -> None:
        while self._learns:
            await asyncio.sleep(TICK_S)
            share = self._retries.refused_elsewhere = self._view.refused_elsewhere
            self.has_learnt |= share > ALL_UP_TO

    def _status(self, head: bytes) -> int:
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        due_s = float(fields[DUE.encode()])
        self.tries_due_s.append(due_s)
        passed_s = max(0.0, due_s - self._looked_s)
        self._room = min(BURST, self._room + self._per_s * passed_s)
        self._looked_s += passed_s
        status = 200 if self._room >= 1 else 503
        if status == 200:
            self._room -= 1
        else:
            assert OTHERS_HEADER in head.lower()
            status = status_on_wire(503, only_replica=not self._retries.take(1))
        return status


async def ask(port: int, number: int, ends: asyncio.Event, seen: list[tuple[float, int]]) -> None:
    """Send a client's share of an open loop; note when each request was due, and its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began_s, due_s = time.monotonic(), number / OFFERED_PER_S
    while not ends.is_set():
        await asyncio.sleep(began_s + due_s - time.monotonic())
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n%s: %f\r\n\r\n" % (DUE.encode(), due_s))
        head = await reader.readuntil(b"ok")
        seen.append((due_s, int(head.split()[1])))
        due_s += CLIENTS / OFFERED_PER_S
    writer.close()


async def overload(
    folder: Path, *, per_s: tuple[float, float], learns: bool
) -> tuple[float, Counter[int]]:
    """Return the tries per request and what clients were told, once the replicas have learned."""
    port, socket = free_port(), folder / "admin.sock"
    ports = {"r0-front": free_port(), "r1-front": free_port()}
    replicas = [
        Replica(server_port, socket, name, per_s=rate, learns=learns)
        for (name, server_port), rate in zip(ports.items(), per_s, strict=True)
    ]
    seen: list[tuple[float, int]] = []
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await stack.enter_async_context(replica.serving())
        with haproxy(port, ports, socket):
            ends = asyncio.Event()
            clients = [asyncio.create_task(ask(port, n, ends, seen)) for n in range(CLIENTS)]
            await until(lambda: seen and seen[-1][0] > LEARNS_S)
            if learns and len({*per_s}) == 1:
                await until(lambda: all(one.has_learnt for one in replicas))
            from_s = max(due_s for due_s, _ in seen)
            await until(lambda: seen[-1][0] > from_s + MEASURED_S)
            ends.set()
            await asyncio.gather(*clients)
    told = Counter(status for due_s, status in seen if due_s > from_s)
    tries = sum(due_s > from_s for replica in replicas for due_s in replica.tries_due_s)
    return tries / told.total(), told


EQUAL = (CAPACITY_PER_S, CAPACITY_PER_S)
#: What each case has: the rates of the two replicas, and whether they learn.
CASES: dict[str, tuple[tuple[float, float], bool]] = {
    "all full": (EQUAL, False),
    "all full, and they learn": (EQUAL, True),
    "one full": ((5.0, 2 * OFFERED_PER_S), True),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, Counter[int]]]:
    """Observe all cases at once: each has a HAProxy of its own, and nearly no work."""

    async def observe() -> list[tuple[float, Counter[int]]]:
        return await asyncio.gather(
            *(
                overload(tmp_path_factory.mktemp("haproxy"), per_s=per_s, learns=learns)
                for per_s, learns in CASES.values()
            )
        )

    return dict(zip(CASES, asyncio.run(observe()), strict=True))


@pytest.mark.parametrize("learns", [False, True])
def test_at_twice_what_all_can_take_few_requests_are_tried_again(
    seen: dict[str, tuple[float, Counter[int]]], *, learns: bool
) -> None:
    tries, told = seen["all full, and they learn" if learns else "all full"]
    assert set(told) == {200, 503}
    assert told[200] / told.total() == pytest.approx(2 * CAPACITY_PER_S / OFFERED_PER_S, rel=0.1)
    assert (tries < 2.2) if learns else (tries > 3.5)


def test_a_replica_that_is_full_alone_passes_its_requests_on(
    seen: dict[str, tuple[float, Counter[int]]],
) -> None:
    _, told = seen["one full"]
    assert told[200] > 0.95 * told.total()
