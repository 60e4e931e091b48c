"""The short way in, and what it takes over from Ray's wrapper."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from deployments.http.app import InferenceApp
from deployments.middleware import FastPath, middlewares, open_fast_path
from deployments.service import InferenceService
from tests.support.doubles_service import Doubles, body, listening, make_service


class Wrapper:
    """Stands where Ray's wrapper does: notes what reaches it, tells the prefix, adds an id."""

    def __init__(self, app: InferenceApp, route_prefix: str = "") -> None:
        self.paths: list[str] = []
        self._app = app
        self._route_prefix = route_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        if self._route_prefix:
            scope["root_path"] = scope.get("root_path", "") + self._route_prefix
        fields = dict(scope["headers"])

        async def send_with_request_id(message: Message) -> None:
            if message["type"] == "http.response.start" and b"x-request-id" in fields:
                message["headers"].append((b"x-request-id", fields[b"x-request-id"]))
            await send(message)

        await self._app(scope, receive, send_with_request_id)


@pytest.fixture(autouse=True)
def _no_entry_left() -> Iterator[None]:
    yield
    FastPath.entry = None


@pytest.fixture
async def service() -> AsyncIterator[InferenceService]:
    async with make_service() as made:
        yield made


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


async def test_passes_on_where_no_model_is_hosted(service: InferenceService) -> None:
    wrapper = Wrapper(InferenceApp(service, "1"))
    async with client_of(FastPath(wrapper)) as client:
        for _ in range(2):
            assert (await client.get("/v2")).status_code == 200
    assert wrapper.paths == ["/v2", "/v2"]


@pytest.mark.parametrize("prefix", ["", "/digits", "/v2"])
async def test_takes_the_models_requests_once_it_knows_the_prefix(
    service: InferenceService, prefix: str
) -> None:
    app = InferenceApp(service, "1")
    wrapper = Wrapper(app, prefix)
    open_fast_path(app)
    assert all(middleware.cls is FastPath for middleware in middlewares())
    async with client_of(FastPath(wrapper)) as client:
        infer = f"{prefix}/v2/models/doubles/infer"
        for _ in range(3):
            answer = await client.post(infer, json=body((1, 2)))
            assert answer.json()["outputs"][0]["data"] == [2, 4]
        assert wrapper.paths == [infer], "the first one told the prefix"
        await client.get("/-/healthz")
        await client.get(f"{prefix}/other")
    assert wrapper.paths[1:] == ["/-/healthz", f"{prefix}/other"]


async def test_the_request_id_is_answered_once_on_both_ways(service: InferenceService) -> None:
    """Ray's wrapper answers with it, too; the first request goes that way."""
    app = InferenceApp(service, "1")
    open_fast_path(app)
    wrapped = FastPath(Wrapper(app))
    async with client_of(wrapped) as client:
        for _ in range(2):
            answer = await client.get("/v2", headers={"X-Request-ID": "mine"})
            assert answer.headers.get_list("x-request-id") == ["mine"]
        elsewhere = await client.get("/-/routes", headers={"X-Request-ID": "mine"})
        assert elsewhere.headers.get_list("x-request-id") == ["mine"]


async def test_passes_on_when_user_code_runs_on_another_loop(service: InferenceService) -> None:
    app = InferenceApp(service, "1")
    wrapper = Wrapper(app)
    open_fast_path(app)
    assert FastPath.entry is not None
    other = asyncio.new_event_loop()
    FastPath.entry.loop = other
    FastPath.entry.root_path = ""
    async with client_of(FastPath(wrapper)) as client:
        await client.get("/v2")
    other.close()
    assert wrapper.paths == ["/v2"]


def raw_request(*rows: tuple[float, float]) -> bytes:
    content = json.dumps(body(*rows)).encode()
    head = f"POST /v2/models/doubles/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content


async def test_a_client_that_left_is_never_computed() -> None:
    model = Doubles()
    model.gate.clear()
    async with make_service(model) as service, listening(InferenceApp(service, "1")) as (_, port):
        first_reader, first = await asyncio.open_connection("127.0.0.1", port)
        first.write(raw_request((1, 1)))
        while not service.batcher.core.device_busy:
            await asyncio.sleep(0.001)
        _, leaver = await asyncio.open_connection("127.0.0.1", port)
        leaver.write(raw_request((2, 2)))
        while not service.batcher.core.queue_length:
            await asyncio.sleep(0.001)
        leaver.close()
        while service.batcher.core.queue_length:
            await asyncio.sleep(0.001)
        model.gate.set()
        assert (await first_reader.readline()).startswith(b"HTTP/1.1 200")
        first.close()
    assert model.rows == [1]


async def test_a_stopping_server_answers_what_it_has_accepted() -> None:
    model = Doubles()
    model.gate.clear()
    async with make_service(model) as service:
        async with listening(InferenceApp(service, "1")) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(raw_request((3, 4)))
            while not service.batcher.core.device_busy:
                await asyncio.sleep(0.001)
            server.should_exit = True
            asyncio.get_running_loop().call_later(0.2, model.gate.set)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"data":[6.0,8.0]' in answer
