"""What a real HAProxy says of its requests, without Ray."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deployments.haproxy_view import HaproxyView
from tests.support.haproxy import haproxy
from tests.support.services import free_port

pytestmark = pytest.mark.integration

CONNECTIONS, ROUNDS = 8, 20
THINKS_S, ANSWERS_AFTER_S = 0.1, 0.02
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            await asyncio.sleep(ANSWERS_AFTER_S)
            writer.write(ANSWER)
    except asyncio.IncompleteReadError:
        writer.close()


async def _ask_and_think(port: int, rounds: int) -> None:
    """Ask again and again on one connection, with a pause after each answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(rounds):
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        await reader.readuntil(b"ok")
        await asyncio.sleep(THINKS_S)
    writer.close()


@asynccontextmanager
async def _server(port: int) -> AsyncIterator[None]:
    server = await asyncio.start_server(_answer, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


async def test_the_time_in_which_clients_think_is_not_counted(tmp_path: Path) -> None:
    server_port, port, socket = free_port(), free_port(), tmp_path / "admin.sock"
    view = HaproxyView("-front", socket)
    with haproxy(port, {"a-front": server_port}, socket):
        async with _server(server_port):
            deadline_s = time.monotonic() + 10
            while not socket.exists() and time.monotonic() < deadline_s:
                await asyncio.sleep(0.05)
            await _ask_and_think(port, 1)
            await view.look()
            await asyncio.gather(*(_ask_and_think(port, ROUNDS) for _ in range(CONNECTIONS)))
            await view.look()
    means, way = view.take(), view.way
    assert means is not None
    assert 1e3 * ANSWERS_AFTER_S <= means.total_ms < 1e3 * (ANSWERS_AFTER_S + THINKS_S / 2)
    assert way is not None
    assert way.balancer_utilisation < 0.5
