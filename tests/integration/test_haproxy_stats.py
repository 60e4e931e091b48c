"""What a real HAProxy reports of its requests, without Ray."""

import asyncio
import time

import numpy as np
import pytest

from deployments.haproxy.stats import HaproxyStats
from tests.support.haproxy.node import new_node
from tests.support.haproxy.servers import Server

pytestmark = pytest.mark.integration

CONNECTIONS, ROUNDS = 16, 40
THINKS_S, ANSWERS_AFTER_S = 0.1, 0.02


class Replica(Server):
    def answer(self, path, fields):
        time.sleep(ANSWERS_AFTER_S)
        return 200, b"ok", {}


async def _ask_and_think(port, rounds):
    """Ask again and again on one connection, with a pause after each answer; return their times."""
    times_s = []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(rounds):
        sent_s = time.monotonic()
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        await reader.readuntil(b"ok")
        times_s.append(time.monotonic() - sent_s)
        await asyncio.sleep(THINKS_S)
    writer.close()
    return times_s


async def test_the_time_in_which_clients_think_is_not_counted(tmp_path):
    with new_node(tmp_path) as node:
        replica = Replica()
        node.replicas = [replica]
        node.start()
        port, stats = node.ports[1], HaproxyStats(f"-{replica.port}", tmp_path / "admin.sock")
        await _ask_and_think(port, 1)
        assert (await stats.read()).mean_ms is None
        seen = await asyncio.gather(*(_ask_and_think(port, ROUNDS) for _ in range(CONNECTIONS)))
        report = await stats.read()
    # The rest of what clients saw is their own, and with their thinking it would be more.
    assert 1e3 * ANSWERS_AFTER_S <= report.mean_ms < 1e3 * (np.mean(seen) + THINKS_S / 2)
    assert report.denied == 0
