import asyncio
import socket

import httpx
import pytest
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deployments.haproxy.replica_sockets import is_served, open_socket
from deployments.http.app import InferenceApp
from deployments.http.middleware import (
    ACCEPTED_AT_ONCE,
    FastPath,
    listen_for_haproxy,
    open_fast_path,
)
from deployments.http.protocol import InferenceProtocol
from tests.support.http.raw_requests import post
from tests.support.models.doubles_service import Doubles, body, listening, serving
from tests.support.waiting import until


class Wrapper:
    """A stand-in for Ray's wrapper: records paths, sets the route prefix, adds a request id."""

    def __init__(self, app, route_prefix=""):
        self.paths = []
        self._app = app
        self._route_prefix = route_prefix

    async def __call__(self, scope, receive, send):
        self.paths.append(scope["path"])
        if self._route_prefix:
            scope["root_path"] = scope.get("root_path", "") + self._route_prefix
        fields = dict(scope["headers"])

        async def send_with_request_id(message):
            if message["type"] == "http.response.start" and b"x-request-id" in fields:
                message["headers"].append((b"x-request-id", fields[b"x-request-id"]))
            await send(message)

        await self._app(scope, receive, send_with_request_id)


@pytest.fixture(autouse=True)
def _close_fast_path():
    yield
    FastPath.opened = InferenceProtocol.hosted = None


def client_of(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


async def test_the_request_id_is_returned_once_on_all_paths(service):
    """Ray's wrapper adds the id, too; the first request passes through it.

    So do those that its proxy, another process, carries while there is no replica. They had two.
    """
    app = InferenceApp(service, "1")
    wrapped = FastPath(Wrapper(app))
    async with client_of(wrapped) as client:
        for number in range(3):
            if number == 1:
                open_fast_path(app)
            answer = await client.get("/v2", headers={"X-Request-ID": "mine"})
            assert answer.headers.get_list("x-request-id") == ["mine"]
        elsewhere = await client.get("/-/routes", headers={"X-Request-ID": "mine"})
        assert elsewhere.headers.get_list("x-request-id") == ["mine"]


BOTH = pytest.mark.parametrize("http", [HttpToolsProtocol, InferenceProtocol])


@BOTH
async def test_the_request_of_a_client_that_left_is_never_computed(http):
    model = Doubles()
    model.gate.clear()
    async with serving(model, http) as (service, _, port):
        first_reader, first = await asyncio.open_connection("127.0.0.1", port)
        first.write(post(body((1, 1))))
        await until(lambda: service.batcher.core.device_busy)
        _, leaver = await asyncio.open_connection("127.0.0.1", port)
        leaver.write(post(body((2, 2))))
        await until(lambda: service.batcher.core.queue_length > 0)
        leaver.close()
        await until(lambda: service.batcher.core.queue_length == 0)
        model.gate.set()
        assert (await first_reader.readline()).startswith(b"HTTP/1.1 200")
        first.close()
    assert model.rows == [1]


@BOTH
async def test_a_stopping_server_answers_accepted_requests(http):
    model = Doubles()
    model.gate.clear()
    async with serving(model, http) as (service, server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(body((3, 4))))
        await until(lambda: service.batcher.core.device_busy)
        listener = server.servers[0]
        server.should_exit = True
        await until(lambda: not listener.is_serving())
        model.gate.set()
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"\r\nconnection: close\r\n" in answer
    assert b'"data":[6.0,8.0]' in answer


@pytest.mark.parametrize("prefix", ["", "/digits", "/v2"])
async def test_requests_skip_the_middleware_once_the_prefix_is_known(service, prefix):
    app = InferenceApp(service, "1")
    wrapper = Wrapper(app, prefix)
    open_fast_path(app)
    fast_path = FastPath(wrapper)
    paths = []

    async def recorder(scope, receive, send):
        paths.append(scope["path"])
        await fast_path(scope, receive, send)

    infer, others = f"{prefix}/v2/models/doubles/infer", ["/-/healthz", f"{prefix}/other"]
    async with (
        listening(recorder, InferenceProtocol) as (_, port),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        for _ in range(3):
            answer = await client.post(infer, json=body((1, 2)))
            assert answer.json()["outputs"][0]["data"] == [2, 4]
        assert (await client.get(f"{prefix}/v2")).status_code == 200
        for path in others:
            await client.get(path)
    assert paths == [infer, f"{prefix}/v2", *others]
    # The first request passes, and shows the prefix.
    assert wrapper.paths == [infer, *others]


async def test_no_request_skips_the_middleware_if_the_batcher_is_on_another_loop(service):
    """Ray may run user code on an event loop of its own."""
    wrapper = Wrapper(InferenceApp(service, "1"))
    open_fast_path(wrapper._app)
    FastPath.opened = wrapper._app, asyncio.new_event_loop()
    async with client_of(FastPath(wrapper)) as client:
        for _ in range(2):
            answer = await client.get("/v2", headers={"X-Request-ID": "mine"})
            assert answer.headers.get_list("x-request-id") == ["mine"]
    FastPath.opened[1].close()
    assert wrapper.paths == ["/v2", "/v2"]
    assert InferenceProtocol.hosted is None


CONNECTIONS = 3 * ACCEPTED_AT_ONCE


async def _started(listening):
    config = uvicorn.Config(_no_app, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup([listening])
    return server


async def _no_app(scope, receive, send):
    """Answer nothing."""


async def iterations_until_accepted(over_unix):
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


def unix_address(port):
    return f"\0sojourn-replica-{port}".encode().ljust(108, b"\0")


@pytest.mark.parametrize("over_unix", [False, True])
def test_a_burst_of_connections_is_accepted_in_a_few_iterations(over_unix):
    """One in each iteration: the last of 96 connections waited for 97 of them."""
    listen_for_haproxy()
    listen_for_haproxy()  # a second call adds nothing
    assert uvloop.run(iterations_until_accepted(over_unix)) <= 2 * CONNECTIONS / ACCEPTED_AT_ONCE


def test_a_replica_whose_name_is_taken_serves_over_tcp(caplog):
    async def serve():
        listening = socket.create_server(("127.0.0.1", 0))
        taken = open_socket(listening.getsockname()[1])
        with taken:
            server = await _started(listening)
            assert server.started
            await server.shutdown([listening])

    listen_for_haproxy()
    uvloop.run(serve())
    assert "over TCP" in caplog.text
