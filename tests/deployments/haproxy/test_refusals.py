"""HAProxy lets in what the replicas hold in time, and tells them of all that it refused."""

import asyncio
import threading
from contextlib import asynccontextmanager

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.haproxy.refusals import (
    FULL,
    LARGEST_BODY_BYTES,
    LIMIT_HEADER,
    RETURN_HEADER,
    UNLIMITED,
    HaproxyPeers,
    rules,
)
from deployments.haproxy.stats import HaproxyStats
from tests.support.haproxy.node import new_node
from tests.support.haproxy.servers import Server
from tests.support.waiting import LIMIT_S


def test_each_backend_has_variables_of_its_own():
    both = [{*rules(name, [])} for name in ("http-a-b", "http-a_b")]
    assert both[0] & both[1] == {rule for rule in rules("any", []) if "proc." not in rule}


class Replica(Server):
    """Answers when `gate` is open, and says how many requests it takes at a time."""

    def __init__(self, limit):
        self.limit = limit
        self.told: dict[str, str] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.holds = self.most = 0
        self._lock = threading.Lock()
        super().__init__()

    def answer(self, path, fields):
        if path == "/-/healthz":
            return 200, b"", {}
        with self._lock:
            self.holds += 1
            self.most = max(self.most, self.holds)
        self.gate.wait(LIMIT_S)
        with self._lock:
            self.holds -= 1
        return 200, b"ok", {LIMIT_HEADER.decode(): str(self.limit), **self.told}


@asynccontextmanager
async def fleet(tmp_path, *limits):
    """Run HAProxy in front of replicas."""
    with new_node(tmp_path) as node:
        replicas = [Replica(limit) for limit in limits]
        node.replicas, node.inter = [*replicas], "1h"  # none is judged by its silence
        node.start()
        url = f"http://127.0.0.1:{node.ports[1]}"
        client = httpx.AsyncClient(base_url=url, limits=httpx.Limits(), timeout=LIMIT_S)
        async with asyncio.timeout(LIMIT_S), client:
            await client.get("/up")  # its answer tells HAProxy the limit
            yield replicas, client


def stats_of(folder, replica: Replica):
    return HaproxyStats(f"replica-{replica.port}", folder / "admin.sock")


async def held(replicas: list[Replica], count):
    while sum(one.holds for one in replicas) < count:
        await asyncio.sleep(0.005)


class Denied:
    """The replicas' counts of the requests that HAProxy refused."""

    def __init__(self, folder, replicas: list[Replica]):
        self._replicas = [stats_of(folder, one) for one in replicas]
        self._counts = [0] * len(replicas)

    async def look(self):
        """Return what each has counted, since the first look."""
        for number, one in enumerate(self._replicas):
            self._counts[number] += (await one.read()).denied
        return self._counts


async def let_in_until_full(replicas: list[Replica], client):
    """Send requests that are held, until one is refused; return both."""
    let_in: list[asyncio.Task[httpx.Response]] = []
    while True:
        sent = asyncio.create_task(client.post("/infer", content=b"{}"))
        while not sent.done() and sum(one.holds for one in replicas) <= len(let_in):
            await asyncio.sleep(0.001)
        if sent.done():
            return let_in, sent.result()
        let_in.append(sent)


async def test_requests_are_refused_while_all_replicas_are_full_and_each_counts_once(tmp_path):
    async with fleet(tmp_path, 3, 3) as (replicas, client):
        await asyncio.gather(*(client.get("/up") for _ in range(5)))
        denied = Denied(tmp_path, replicas)
        await denied.look()
        for one in replicas:
            one.gate.clear()
        let_in, refusal = await let_in_until_full(replicas, client)
        assert [one.holds for one in replicas] == [3, 3]
        beyond = [refusal, *[await client.post("/infer", content=b"{}") for _ in range(5)]]
        # Other requests than for inference are let in all the same, and twice as many with a
        # priority: a client could claim one for all of its requests.
        high = {"X-Request-Priority": "1"}
        others = [asyncio.create_task(client.get("/sojourn/policy"))]
        others += [asyncio.create_task(client.post("/infer", headers=high)) for _ in range(5)]
        await held(replicas, len(let_in) + 6)
        assert (await client.post("/infer", headers=high)).status_code == 503
        for one in replicas:
            one.gate.set()
        answers = [*await asyncio.gather(*let_in, *others), *beyond]
        assert [one.status_code for one in answers] == [200] * (len(let_in) + 6) + [503] * 6
        for refusal in beyond:
            assert refusal.text == FULL
            assert 1 <= int(refusal.headers["retry-after"]) <= 5
            assert refusal.headers["x-sojourn-reason"] == "concurrency_limit"
            assert refusal.headers["content-type"] == "application/json"
        # The limit is for HAProxy alone.
        assert all(LIMIT_HEADER.decode() not in one.headers for one in answers)
        first = await denied.look()
        assert sum(first) in (6, 7), "the seventh may be a half for each"
        assert await denied.look() == first


@pytest.mark.slow
async def test_a_replica_that_hangs_gets_no_more_and_has_no_requests_refused(tmp_path):
    async with fleet(tmp_path, 4, 4) as (replicas, client):
        hanging = replicas[0]
        await asyncio.gather(*(client.get("/up") for _ in range(5)))
        hanging.gate.clear()
        answered, stuck = 0, list[asyncio.Task[httpx.Response]]()
        while answered < 60:
            sent = asyncio.create_task(client.post("/infer", content=b"{}"))
            while not sent.done() and hanging.holds <= len(stuck):
                await asyncio.sleep(0.001)
            if sent.done():
                assert sent.result().status_code == 200
                answered += 1
            else:
                stuck.append(sent)
        assert len(stuck) == 4
        hanging.gate.set()
        assert {one.status_code for one in await asyncio.gather(*stuck)} == {200}


async def test_a_limit_that_changes_is_followed_and_before_it_is_said_nothing_is_refused(tmp_path):
    async with fleet(tmp_path, UNLIMITED) as (replicas, client):
        (replica,) = replicas
        denied = Denied(tmp_path, replicas)
        await denied.look()
        for limit in (UNLIMITED, 1, 4, 2):
            replica.limit, replica.most = limit, 0
            await client.get("/up")
            replica.gate.clear()
            sent = [asyncio.create_task(client.post("/infer", content=b"{}")) for _ in range(8)]
            let_in = min(limit, 8)
            await held(replicas, let_in)
            while sum(one.done() for one in sent) < 8 - let_in:
                await asyncio.sleep(0.005)
            replica.gate.set()
            statuses = [one.status_code for one in await asyncio.gather(*sent)]
            assert (replica.most, statuses.count(200)) == (let_in, let_in)
            assert statuses.count(503) == 8 - let_in
        assert await denied.look() == [7 + 4 + 6]


async def test_refused_clients_return_at_random_when_the_replicas_say(tmp_path):
    async with fleet(tmp_path, 1) as (replicas, client):
        (replica,) = replicas
        replica.told = {RETURN_HEADER.decode(): "40"}
        stats = stats_of(tmp_path, replica)
        await stats.read()
        assert RETURN_HEADER.decode() not in (await client.get("/up")).headers
        replica.gate.clear()
        first = asyncio.create_task(client.post("/infer", content=b"{}"))
        await held(replicas, 1)
        refused = [await client.post("/infer", content=b"{}") for _ in range(20)]
        replica.gate.set()
        assert "retry-after" not in (await first).headers
        seen = await stats.read()
        assert (seen.answered, seen.failed) == (2, 20)
    seconds = [int(one.headers["retry-after"]) for one in refused]
    assert 40 <= min(seconds) < max(seconds) < 80


async def test_bodies_that_come_late_or_are_large_get_their_answers(tmp_path):
    """HAProxy refuses when all of a body has come, and leaves what it cannot hold to a replica."""

    async def slowly(size):
        for _ in range(4):
            await asyncio.sleep(0.01)
            yield b" " * (size // 4)

    async with fleet(tmp_path, 1) as (replicas, client):
        (replica,) = replicas
        denied = Denied(tmp_path, replicas)
        await denied.look()
        replica.gate.clear()
        first = asyncio.create_task(client.post("/infer", content=b"{}"))
        await held(replicas, 1)
        for size in (400, LARGEST_BODY_BYTES):
            length = {"Content-Length": str(size)}
            answer = await client.post("/infer", content=slowly(size), headers=length)
            assert (answer.status_code, answer.text) == (503, FULL)
        large = [b" " * (LARGEST_BODY_BYTES + 1), b" " * 3_000_000]
        let_in = [asyncio.create_task(client.post("/infer", content=one)) for one in large]
        await held(replicas, 3)
        replica.gate.set()
        assert [one.status_code for one in await asyncio.gather(first, *let_in)] == [200] * 3
        assert await denied.look() == [2]


@given(
    limit=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from([None, "", "a", "b", "stranger"]))),
)
def test_the_parts_of_all_connected_haproxies_are_the_limit(limit, steps):
    """Strangers have no part, however often they connect."""
    haproxies, connected = HaproxyPeers(), list[str]()
    haproxies.nodes = frozenset({"a", "b"})
    for arrives, peer in steps:
        if arrives:
            is_one = haproxies.connected(peer)
            assert is_one == (peer in ("", "a", "b"))
            connected += [peer] if is_one and peer is not None else []
        elif peer in connected:
            connected.remove(peer)
            haproxies.left(peer)
    assert haproxies.share(limit) == -(-limit // max(1, len(set(connected))))
