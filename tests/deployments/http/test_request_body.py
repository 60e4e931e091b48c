"""Bodies and header fields: read, decompressed and bounded; large ones over real sockets."""

import asyncio
import contextlib
import gzip
import json
import re
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.errors import (
    BadRequestError,
    RequestError,
    TooLargeError,
    UnsupportedEncodingError,
)
from deployments.http.app import InferenceApp
from deployments.http.protocol import InferenceProtocol
from deployments.http.request_body import read_body
from deployments.http.request_head import (
    check_single_valued,
    read_header_length,
    read_priority,
    read_timeout_ms,
)
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

PACK: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"x-gzip": gzip.compress,
    b"deflate": zlib.compress,
}


class Sender:
    """An ASGI `receive` that delivers chunks and counts them."""

    def __init__(self, chunks, *, disconnects=False):
        self.chunks = list(chunks)
        self.taken = 0
        self._disconnects = disconnects

    async def __call__(self):
        if self.taken == len(self.chunks):
            assert self._disconnects, "the body was read beyond its end"
            return {"type": "http.disconnect"}
        self.taken += 1
        more = self._disconnects or self.taken < len(self.chunks)
        return {
            "type": "http.request",
            "body": self.chunks[self.taken - 1],
            "more_body": more,
        }


async def read(body, max_body_bytes=100, **headers):
    fields = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return await read_body(Sender([body]), fields, max_body_bytes)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"x-gzip", b"GZIP", b" Deflate "])
async def test_compressed_bodies_are_decompressed(coding):
    compressed = PACK[coding.strip().lower()](b"x" * 100)
    assert await read(compressed, content_encoding=coding) == b"x" * 100


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip, gzip", b"gzip,deflate", b"\xff"])
async def test_an_unknown_coding_is_rejected_before_reading(coding):
    sender = Sender([b"x"])
    with pytest.raises(UnsupportedEncodingError, match="gzip, deflate or identity"):
        await read_body(sender, {b"content-encoding": coding}, 100)
    assert sender.taken == 0


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
async def test_one_byte_over_the_limit_after_decompression_is_too_large(coding):
    with pytest.raises(TooLargeError, match="decompressed body is too large: at most 99 bytes"):
        await read(PACK[coding](b"x" * 100), 99, content_encoding=coding)
    assert len(await read(PACK[coding](b"x" * 100), 100, content_encoding=coding)) == 100


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
async def test_a_bomb_is_never_decompressed_beyond_the_limit(coding):
    bomb = PACK[coding](bytes(50_000_000))
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError):
            await read(bomb, 100_000, content_encoding=coding)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
@pytest.mark.parametrize(
    ("corrupt", "problem"),
    [
        (lambda compressed: compressed[:-1], "ends too early"),
        (lambda compressed: b"", "ends too early"),
        (lambda compressed: compressed + b"x", "unexpected bytes follow"),
        (lambda compressed: compressed + compressed, "unexpected bytes follow"),
        (lambda compressed: b"{}" + compressed, "not valid"),
        (lambda compressed: compressed[:-4] + b"\xff" * 4, "not valid"),
    ],
)
async def test_a_corrupt_stream_is_a_bad_request(coding, corrupt, problem):
    with pytest.raises(BadRequestError, match=problem):
        await read(corrupt(PACK[coding](b"some content")), content_encoding=coding)


@given(body=st.binary(max_size=60), coding=st.sampled_from([b"gzip", b"deflate"]))
@settings(derandomize=True, max_examples=100)
def test_arbitrary_bytes_are_decompressed_or_rejected(body, coding):
    read_once = read(body, 20, content_encoding=coding)
    with pytest.raises((StopIteration, RequestError)):
        read_once.send(None)


@given(chunks=st.lists(st.binary(max_size=9), min_size=1, max_size=9), announced=st.booleans())
@settings(derandomize=True, max_examples=100)
def test_chunks_are_joined_up_to_the_limit(chunks, announced):
    body, sender = b"".join(chunks), Sender(chunks)
    fields = {b"content-length": b"%d" % len(body)} if announced else {}
    limit = 30
    reading = read_body(sender, fields, limit)
    if len(body) > limit:
        with pytest.raises(TooLargeError, match="at most 30 bytes are allowed"):
            reading.send(None)
        assert sum(map(len, chunks[: sender.taken])) < limit + 10
    else:
        with pytest.raises(StopIteration) as caught:
            reading.send(None)
        assert caught.value.value == body


async def test_a_content_length_over_the_limit_is_rejected_before_reading():
    sender = Sender([b"x"])
    with pytest.raises(TooLargeError):
        await read_body(sender, {b"content-length": b"101"}, 100)
    assert sender.taken == 0


@pytest.mark.parametrize(
    "length", [b"-1", b"+1", b"1_0", b"1.5", b"x", b"", b" 1", b"9" * 5000, b"\xb2"]
)
async def test_a_length_that_is_not_a_number_is_a_bad_request(length):
    with pytest.raises(BadRequestError, match="whole number"):
        await read(b"", content_length=length)
    with pytest.raises(BadRequestError, match="whole number"):
        read_header_length({b"inference-header-content-length": length})


async def test_a_disconnect_before_the_end_of_the_body_is_a_bad_request():
    with pytest.raises(BadRequestError, match="disconnected"):
        await read_body(Sender([b"ab"], disconnects=True), {}, 100)


@pytest.mark.parametrize(
    ("value", "timeout_ms"), [(b"250", 250), (b"0.5", 0.5), (b"007", 7), (b"1e3", 1000)]
)
def test_reads_the_deadline(value, timeout_ms):
    assert read_timeout_ms({b"x-request-timeout-ms": value}) == timeout_ms
    assert read_timeout_ms({}) is None


@pytest.mark.parametrize("value", [b"0", b"-1", b"nan", b"1_0", b"", b"86400001", b"9" * 400])
def test_an_invalid_deadline_is_rejected(value):
    with pytest.raises(BadRequestError, match="milliseconds above 0"):
        read_timeout_ms({b"x-request-timeout-ms": value})


def test_reads_the_priority():
    values = (b"0", b"1", b"100")
    assert [read_priority({b"x-request-priority": value}) for value in values] == [0, 1, 100]
    assert read_priority({}) == 0
    for value in (b"101", b"-1", b"high", b"", b"\xff", b"01", b"1" * 5000):
        with pytest.raises(BadRequestError, match="must be a whole number from 0 to 100, not"):
            read_priority({b"x-request-priority": value})


def test_repeated_fields_must_agree():
    check_single_valued(
        [(b"content-length", b"1"), (b"content-length", b"1"), (b"cookie", b"a")] * 2
    )
    check_single_valued([(b"cookie", b"a"), (b"cookie", b"b"), (b"x-request-id", b"a")])
    with pytest.raises(BadRequestError, match="content-length is given more than once"):
        check_single_valued([(b"content-length", b"1"), (b"content-length", b"2")])


SHAPE = (3, 100, 100)
GZIP = "Content-Encoding: gzip"
X = np.random.default_rng(0).random((2, *SHAPE)).astype(np.float32)


class Sums(Model):
    """Sums each row."""

    inputs = (TensorSpec("x", "FP32", SHAPE),)
    outputs = (TensorSpec("y", "FP32"),)

    def load(self, device): ...

    def forward(self, batch):
        return {"y": batch["x"].reshape(len(batch["x"]), -1).sum(1)}


@dataclass
class Served:
    service: InferenceService
    app: InferenceApp
    port: int

    @contextlib.asynccontextmanager
    async def connect(self):
        without_access_log()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


@pytest.fixture
async def served():
    config = ModelConfig(name="sums", import_path="unused:Unused", max_batch_size=4)
    service = InferenceService(config, Sums(), PROFILE)
    limits = {**USER_CONFIG["limits"], "max_body_bytes": 16 << 20}
    await service.configure(parse_user_config({**USER_CONFIG, "limits": limits}))
    app = InferenceApp(service, "1")
    with hosting(app):
        async with listening(app, InferenceProtocol) as (_, port):
            yield Served(service, app, port)
    await service.close()


def content(x=X):
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


def post(body, *fields):
    if GZIP in fields:
        body = gzip.compress(body, 1)
    lines = ["POST /v2/models/sums/infer HTTP/1.1", "Host: x", *fields]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def answer(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    return int(head.split()[1]), json.loads(await reader.readexactly(int(length[1])))


@pytest.mark.parametrize("fields", [(), (GZIP,)], ids=["fast path", "asgi"])
async def test_a_wrong_large_request_is_refused_and_the_next_one_answered(served, fields):
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
async def test_json_has_a_limit_and_binary_data_may_be_larger(served, fields):
    padding = np.random.default_rng(0).bytes(MAX_JSON_BYTES // 2).hex().encode()
    tensor = {"name": "x", "datatype": "FP32", "shape": list(X.shape), "data": [1] * X.size}
    too_long = json.dumps({"inputs": [tensor]}).encode() + padding
    large = X[:1]
    binary = {
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
