"""A burst of connections is accepted in a few iterations of the event loop."""

import asyncio
import socket

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from deployments.http.listeners import ACCEPTED_AT_ONCE, accept_many

CONNECTIONS = 3 * ACCEPTED_AT_ONCE


async def iterations_until_accepted() -> int:
    """Return how many iterations it takes to accept connections that all are there at once."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=2 * CONNECTIONS)
    config = uvicorn.Config(_no_app, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup([listening])
    clients = [socket.create_connection(listening.getsockname()) for _ in range(CONNECTIONS)]
    iterations = 0
    while len(server.server_state.connections) < CONNECTIONS:
        await asyncio.sleep(0)
        iterations += 1
    for client in clients:
        client.close()
    while server.server_state.connections:
        await asyncio.sleep(0)
    await server.shutdown([listening])
    return iterations


async def _no_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer nothing."""


def test_a_burst_of_connections_is_accepted_in_a_few_iterations() -> None:
    """One in each iteration: the last of 96 connections waited for 97 of them."""
    accept_many()
    accept_many()  # a second call adds nothing
    assert uvloop.run(iterations_until_accepted()) <= 2 * CONNECTIONS / ACCEPTED_AT_ONCE
