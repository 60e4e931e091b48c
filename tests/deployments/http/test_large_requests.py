"""Large JSON over real sockets: others are answered meanwhile, and nothing of it stays behind."""

import asyncio
import contextlib
import gzip
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from deployments.config.service_config import ModelConfig, parse_user_config
from deployments.http import turns
from deployments.http.app import InferenceApp
from deployments.http.protocol import HostedApp, InferenceProtocol
from deployments.models.base import Model, TensorSpec
from deployments.serving.service import InferenceService
from policy.batcher.requests import Refusal
from tests.support.doubles_service import PROFILE, USER_CONFIG, listening, without_access_log

SHAPE = (3, 100, 100)
GZIP = "Content-Encoding: gzip"
X = np.random.default_rng(0).random((2, *SHAPE)).astype(np.float32)


class Sums(Model):
    """Sums each row."""

    inputs = (TensorSpec("x", "FP32", SHAPE),)
    outputs = (TensorSpec("y", "FP32"),)

    def load(self, device: str) -> None: ...

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return {"y": batch["x"].reshape(len(batch["x"]), -1).sum(1)}


@dataclass
class Served:
    service: InferenceService
    app: InferenceApp
    port: int

    async def begins_to_parse(self) -> None:
        while not self.app.turns._waiting:
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        without_access_log()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A service whose turns are as short as can be: one piece."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    config = ModelConfig(name="sums", import_path="unused:Unused", max_batch_size=4)
    service = InferenceService(config, Sums(), PROFILE)
    limits = {**USER_CONFIG["limits"], "max_body_bytes": 4 << 20}
    await service.configure(parse_user_config({**USER_CONFIG, "limits": limits}))
    app = InferenceApp(service, "1")
    InferenceProtocol.hosted = HostedApp(app, asyncio.get_running_loop())
    try:
        async with listening(app, InferenceProtocol) as (_, port):
            yield Served(service, app, port)
    finally:
        InferenceProtocol.hosted = None
        await service.close()


def content(x: NDArray[Any] = X) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


def post(body: bytes, *fields: str) -> bytes:
    if GZIP in fields:
        body = gzip.compress(body, 1)
    lines = ["POST /v2/models/sums/infer HTTP/1.1", "Host: x", *fields]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    return int(head.split()[1]), json.loads(await reader.readexactly(int(length[1])))


@pytest.mark.parametrize("fields", [(), (GZIP,)], ids=["short way", "asgi"])
async def test_others_are_answered_while_a_large_request_is_parsed(
    served: Served, fields: tuple[str, ...]
) -> None:
    order: list[str] = []
    async with served.connect() as (reader, writer), served.connect() as (other, sender):

        async def ask_for_others() -> None:
            while "large" not in order:
                sender.write(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                await answer(other)
                order.append("other")

        writer.write(post(content(), *fields))
        await served.begins_to_parse()
        asking = asyncio.create_task(ask_for_others())
        status, found = await answer(reader)
        order.append("large")
        await asking
    assert status == 200
    assert found["outputs"][0]["data"] == pytest.approx(X.reshape(2, -1).sum(1).tolist())
    assert order.index("large") >= 5


@pytest.mark.parametrize("fields", [(), (GZIP,)], ids=["short way", "asgi"])
async def test_a_wrong_large_request_is_refused_and_the_next_one_answered(
    served: Served, fields: tuple[str, ...]
) -> None:
    right = content()
    wrong = [right[:-9] + b",nonsense", right.replace(b"], [", b"] [", 1), content(X[:, :2])]
    async with served.connect() as (reader, writer):
        for body in wrong:
            writer.write(post(body, *fields))
            status, found = await answer(reader)
            assert (status, list(found)) == (400, ["error"])
        writer.write(post(right, *fields) * 2)
        for _ in range(2):
            assert (await answer(reader))[0] == 200
    assert served.service.bodies.used_bytes == 0


@pytest.mark.parametrize("fields", [(), (GZIP,)], ids=["short way", "asgi"])
@pytest.mark.parametrize(("parses_s", "status"), [(20.0, 200), (100.0, 503)])
async def test_what_would_be_parsed_too_late_is_refused_before(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    fields: tuple[str, ...],
    parses_s: float,
    status: int,
) -> None:
    """200 bodies of 600 KB a second were all parsed, one after the other, and all too late."""

    def turns_away(arrival_s: float, now_s: float, priority: int) -> Refusal | None:
        return Refusal.FULL if now_s > arrival_s + 60.0 else None

    monkeypatch.setattr(served.service, "turns_away", turns_away)
    monkeypatch.setattr(served.app.turns, "ends_in_s", lambda size: parses_s)
    async with served.connect() as (reader, writer):
        writer.write(post(content(), *fields))
        told, _ = await answer(reader)
    rows = served.service.batcher.rows
    assert told == status
    assert (rows.offered, rows.refused) == (2, 2 if status == 503 else 0)


async def test_a_client_that_leaves_has_nothing_parsed_any_more(served: Served) -> None:
    async with served.connect() as (_, writer):
        writer.write(post(content()))
        await served.begins_to_parse()
    while served.app.turns._waiting or served.service.bodies.used_bytes:
        await asyncio.sleep(0)
    assert served.service.explain()["rows"]["offered"] == 0
