"""Large requests over real sockets: JSON up to its limit, binary data beyond it."""

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

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.http.app import InferenceApp
from deployments.http.protocol import InferenceProtocol
from deployments.http.signature import MAX_JSON_BYTES
from deployments.models.base import Model, TensorSpec
from deployments.serving.service import InferenceService
from tests.support.models.doubles_service import (
    PROFILE,
    USER_CONFIG,
    hosting,
    listening,
    without_access_log,
)

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

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        without_access_log()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    config = ModelConfig(name="sums", import_path="unused:Unused", max_batch_size=4)
    service = InferenceService(config, Sums(), PROFILE)
    limits = {**USER_CONFIG["limits"], "max_body_bytes": 16 << 20}
    await service.configure(parse_user_config({**USER_CONFIG, "limits": limits}))
    app = InferenceApp(service, "1")
    with hosting(app):
        async with listening(app, InferenceProtocol) as (_, port):
            yield Served(service, app, port)
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


@pytest.mark.parametrize("fields", [(), (GZIP,)], ids=["fast path", "asgi"])
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


@pytest.mark.parametrize("fields", [(), (GZIP,)], ids=["fast path", "asgi"])
async def test_json_has_a_limit_and_binary_data_may_be_larger(
    served: Served, fields: tuple[str, ...]
) -> None:
    padding = np.random.default_rng(0).bytes(MAX_JSON_BYTES // 2).hex().encode()
    tensor = {"name": "x", "datatype": "FP32", "shape": list(X.shape), "data": [1] * X.size}
    too_long = json.dumps({"inputs": [tensor]}).encode() + padding
    large = X[:1]
    binary: dict[str, Any] = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, *SHAPE],
        "parameters": {"binary_data_size": large.nbytes},
    }
    header = json.dumps({"inputs": [binary]}).encode()
    length = f"Inference-Header-Content-Length: {len(header)}"
    async with served.connect() as (reader, writer):
        writer.write(post(too_long, *fields))
        status, found = await answer(reader)
        assert (status, found["error"]) == (
            413,
            f"JSON bodies are limited to {MAX_JSON_BYTES} bytes; send binary tensor data",
        )
    async with served.connect() as (reader, writer):
        writer.write(post(header + large.tobytes() * 40, length, *fields))
        status, found = await answer(reader)
        assert (status, "unexpected bytes follow" in found["error"]) == (400, True)
        writer.write(post(header + large.tobytes(), length, *fields))
        assert (await answer(reader))[0] == 200
    assert served.service.bodies.used_bytes == 0
