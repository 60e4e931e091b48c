"""A replica listens on TCP and on a Unix socket, and accepts bursts of connections."""

import asyncio
import socket

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from deployments.haproxy.replica_sockets import is_served, open_socket
from deployments.http.middleware import ACCEPTED_AT_ONCE, listen_for_haproxy

CONNECTIONS = 3 * ACCEPTED_AT_ONCE


async def _started(listening: socket.socket) -> uvicorn.Server:
    config = uvicorn.Config(_no_app, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup([listening])
    return server


async def _no_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer nothing."""


async def iterations_until_accepted(over_unix: bool) -> int:
    """Return how many iterations it takes to accept connections that all are there at once."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=2 * CONNECTIONS)
    server = await _started(listening)
    address = listening.getsockname()
    port = address[1]
    assert is_served(port)
    while server.server_state.connections:  # the question whether it is served
        await asyncio.sleep(0)
    family = socket.AF_UNIX if over_unix else socket.AF_INET
    clients = [socket.socket(family) for _ in range(CONNECTIONS)]
    for client in clients:
        client.connect(unix_address(port) if over_unix else address)
    iterations = 0
    while len(server.server_state.connections) < CONNECTIONS:
        await asyncio.sleep(0)
        iterations += 1
    for client in clients:
        client.close()
    while server.server_state.connections:
        await asyncio.sleep(0)
    await server.shutdown([listening])
    await asyncio.sleep(0)
    assert not is_served(port)
    return iterations


def unix_address(port: int) -> bytes:
    return f"\0sojourn-replica-{port}".encode().ljust(108, b"\0")


@pytest.mark.parametrize("over_unix", [False, True])
def test_a_burst_of_connections_is_accepted_in_a_few_iterations(over_unix: bool) -> None:
    """One in each iteration: the last of 96 connections waited for 97 of them."""
    listen_for_haproxy()
    listen_for_haproxy()  # a second call adds nothing
    assert uvloop.run(iterations_until_accepted(over_unix)) <= 2 * CONNECTIONS / ACCEPTED_AT_ONCE


def test_a_replica_whose_name_is_taken_serves_over_tcp(caplog: pytest.LogCaptureFixture) -> None:
    async def serve() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        taken = open_socket(listening.getsockname()[1])
        assert taken is not None
        with taken:
            server = await _started(listening)
            assert server.started
            await server.shutdown([listening])

    listen_for_haproxy()
    uvloop.run(serve())
    assert "over TCP" in caplog.text
