"""Compressed answers: who gets them, and that they hold what the plain ones hold."""

import asyncio
import contextlib
import gzip
import re
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.http.answers import BINARY, COMPRESSED_FROM_BYTES, JSON, pays
from deployments.http.app import InferenceApp
from deployments.http.protocol import InferenceProtocol
from deployments.http.request_head import accepted_coding
from deployments.models.base import Model, TensorSpec
from deployments.serving.service import InferenceService
from tests.support.models.doubles_service import PROFILE, USER_CONFIG, hosting, listening

UNPACK: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.decompress,
    b"deflate": zlib.decompress,
}


@pytest.mark.parametrize(
    ("value", "coding"),
    [
        (b"gzip", b"gzip"),
        (b"gzip, deflate, br, zstd", b"gzip"),
        (b"br;q=1.0, DEFLATE;q=0.8, *;q=0.1", b"deflate"),
        (b"deflate", b"deflate"),
        (b"*", b"gzip"),
        (b"*;q=0", None),
        (b"gzip;q=0", None),
        (b"gzip;q=0, *", b"deflate"),
        (b"identity, gzip;q=0.5", None),
        (b"identity", None),
        (b"", None),
        (b"br", None),
        (b"gzip;q=2", None),
        (b"gzip;level=9", None),
    ],
)
def test_the_coding_that_the_client_prefers_is_used(value: bytes, coding: bytes | None) -> None:
    assert accepted_coding(value) == coding


@given(st.binary(max_size=40))
def test_any_header_is_understood_or_ignored(value: bytes) -> None:
    assert accepted_coding(value) in (None, b"gzip", b"deflate")


def test_only_large_json_is_compressed() -> None:
    """Binary tensors hardly become smaller."""
    large = b" " * COMPRESSED_FROM_BYTES
    assert pays((200, large, [JSON]))
    assert not pays((200, large[1:], [JSON]))
    assert not pays((200, large, [BINARY]))


class Repeats(Model):
    """Returns `n` values for each row."""

    inputs = (TensorSpec("x", "FP32"),)

    def __init__(self, n: int) -> None:
        self.outputs = (TensorSpec("y", "FP32", (n,)),)
        self._n = n

    def load(self, device: str) -> None: ...

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return {"y": batch["x"][:, None] + np.arange(self._n, dtype=np.float32)}


@contextlib.asynccontextmanager
async def serving(n: int) -> AsyncIterator[int]:
    config = ModelConfig(name="repeats", import_path="unused:Unused", max_batch_size=4)
    service = InferenceService(config, Repeats(n), PROFILE)
    await service.configure(parse_user_config(USER_CONFIG))
    app = InferenceApp(service, "1")
    try:
        with hosting(app):
            async with listening(app, InferenceProtocol) as (_, port):
                yield port
    finally:
        await service.close()


async def ask(port: int, *fields: str, requests: int = 1) -> list[tuple[bytes, bytes]]:
    """Send requests on one connection, all at once; return heads and bodies of the answers."""
    entry = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    content = orjson.dumps({"inputs": [entry]})
    lines = ["POST /v2/models/repeats/infer HTTP/1.1", "Host: x", *fields]
    head = "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write((head.encode() + content) * requests)
    answers = []
    for _ in range(requests):
        start = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", start)
        assert length is not None
        answers.append((start, await reader.readexactly(int(length[1]))))
    writer.close()
    await writer.wait_closed()
    return answers


@pytest.mark.parametrize("coding", UNPACK)
@pytest.mark.parametrize("asgi", [(), ("Connection: close",)], ids=["short way", "asgi"])
async def test_a_large_answer_is_compressed_for_who_asks(coding: bytes, asgi: tuple[str]) -> None:
    async with serving(30_000) as port:
        ((plain_head, plain),) = await ask(port, *asgi)
        ((head, packed),) = await ask(port, f"Accept-Encoding: br, {coding.decode()}", *asgi)
    assert b"content-encoding" not in plain_head
    assert b"content-encoding: %b\r\nvary: accept-encoding\r\n" % coding in head
    assert UNPACK[coding](packed) == plain
    assert len(packed) < 0.6 * len(plain)


async def test_pipelined_requests_get_their_compressed_answers_in_order() -> None:
    async with serving(30_000) as port:
        answers = await ask(port, "Accept-Encoding: gzip", requests=3)
    assert len({gzip.decompress(packed) for _, packed in answers}) == 1


async def test_a_small_answer_is_not_compressed() -> None:
    async with serving(100) as port:
        ((head, content),) = await ask(port, "Accept-Encoding: gzip")
    assert b"content-encoding" not in head
    assert orjson.loads(content)["outputs"][0]["shape"] == [1, 100]
