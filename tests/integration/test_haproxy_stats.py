"""What a real HAProxy reports of its requests, without Ray."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from deployments.haproxy.stats import HaproxyStats
from tests.support.haproxy.lone import haproxy
from tests.support.ports import free_port

pytestmark = pytest.mark.integration

CONNECTIONS, ROUNDS = 16, 40
THINKS_S, ANSWERS_AFTER_S = 0.1, 0.02
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            await asyncio.sleep(ANSWERS_AFTER_S)
            writer.write(ANSWER)
    except asyncio.IncompleteReadError:
        writer.close()


async def _ask_and_think(port: int, rounds: int) -> list[float]:
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


@asynccontextmanager
async def _server(port: int) -> AsyncIterator[None]:
    answering: list[asyncio.Task[None]] = []

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.append(task)
        await _answer(reader, writer)

    server = await asyncio.start_server(noted, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()
        await asyncio.gather(*answering)  # HAProxy has ended, and closed its connections


async def test_the_time_in_which_clients_think_is_not_counted(tmp_path: Path) -> None:
    server_port, port, socket = free_port(), free_port(), tmp_path / "admin.sock"
    stats = HaproxyStats("-front", socket)
    async with _server(server_port):
        with haproxy(port, {"a-front": server_port}, socket):
            await _ask_and_think(port, 1)
            assert (await stats.read()).mean_ms is None
            seen = await asyncio.gather(*(_ask_and_think(port, ROUNDS) for _ in range(CONNECTIONS)))
            report = await stats.read()
    # The rest of what clients saw is their own, and with their thinking it would be more.
    assert report.mean_ms is not None
    assert 1e3 * ANSWERS_AFTER_S <= report.mean_ms < 1e3 * (np.mean(seen) + THINKS_S / 2)
    assert report.denied == 0
