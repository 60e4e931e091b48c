"""Header fields and bodies."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from deployments.errors import (
    BadRequestError,
    RequestError,
    TooLargeError,
    UnsupportedEncodingError,
)
from deployments.http.request import (
    check_single,
    read_body,
    read_header_length,
    read_priority,
    read_timeout_ms,
)

PACK: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"x-gzip": gzip.compress,
    b"deflate": zlib.compress,
}


class Sender:
    """Stands where the server does: hands over chunks, and counts what was taken."""

    def __init__(self, chunks: Iterable[bytes], *, leaves: bool = False) -> None:
        self.chunks = list(chunks)
        self.taken = 0
        self._leaves = leaves

    async def __call__(self) -> Message:
        if self.taken == len(self.chunks):
            assert self._leaves, "the body was read beyond its end"
            return {"type": "http.disconnect"}
        self.taken += 1
        more = self._leaves or self.taken < len(self.chunks)
        return {
            "type": "http.request",
            "body": self.chunks[self.taken - 1],
            "more_body": more,
        }


async def read(body: bytes, max_body_bytes: int = 100, **headers: bytes) -> bytes:
    fields = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return await read_body(Sender([body]), fields, max_body_bytes)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"x-gzip", b"GZIP", b" Deflate "])
async def test_packed_bodies_are_unpacked(coding: bytes) -> None:
    packed = PACK[coding.strip().lower()](b"x" * 100)
    assert await read(packed, content_encoding=coding) == b"x" * 100


@pytest.mark.parametrize("coding", [b"", b"identity"])
async def test_identity_is_no_packing(coding: bytes) -> None:
    assert await read(b"plain", content_encoding=coding) == b"plain"


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip, gzip", b"gzip,deflate", b"\xff"])
async def test_unknown_packing_is_refused_unread(coding: bytes) -> None:
    sender = Sender([b"x"])
    with pytest.raises(UnsupportedEncodingError, match="gzip, deflate or identity"):
        await read_body(sender, {b"content-encoding": coding}, 100)
    assert sender.taken == 0


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
async def test_what_unpacks_to_one_byte_too_much_is_too_large(coding: bytes) -> None:
    with pytest.raises(TooLargeError, match="unpack to 99 bytes at most"):
        await read(PACK[coding](b"x" * 100), 99, content_encoding=coding)
    assert len(await read(PACK[coding](b"x" * 100), 100, content_encoding=coding)) == 100


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
async def test_a_bomb_is_never_unpacked_beyond_the_cap(coding: bytes) -> None:
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
    ("spoil", "complaint"),
    [
        (lambda packed: packed[:-1], "ends within its"),
        (lambda packed: b"", "ends within its"),
        (lambda packed: packed + b"x", "bytes follow the end"),
        (lambda packed: packed + packed, "bytes follow the end"),
        (lambda packed: b"{}" + packed, "not valid"),
        (lambda packed: packed[:-4] + b"\xff" * 4, "not valid"),
    ],
)
async def test_a_spoilt_stream_is_a_bad_request(
    coding: bytes, spoil: Callable[[bytes], bytes], complaint: str
) -> None:
    with pytest.raises(BadRequestError, match=complaint):
        await read(spoil(PACK[coding](b"some content")), content_encoding=coding)


async def test_deflate_means_zlibs_format() -> None:
    raw = zlib.compressobj(wbits=-15)
    with pytest.raises(BadRequestError, match="not valid deflate"):
        await read(raw.compress(b"x" * 50) + raw.flush(), content_encoding=b"deflate")


@given(body=st.binary(max_size=60), coding=st.sampled_from([b"gzip", b"deflate"]))
@settings(derandomize=True, max_examples=100)
def test_any_bytes_said_to_be_packed_are_unpacked_or_refused(body: bytes, coding: bytes) -> None:
    read_once = read(body, 20, content_encoding=coding)
    with pytest.raises((StopIteration, RequestError)):
        read_once.send(None)


@given(chunks=st.lists(st.binary(max_size=9), min_size=1, max_size=9), stated=st.booleans())
@settings(derandomize=True, max_examples=100)
def test_chunks_are_joined_up_to_the_limit(chunks: list[bytes], stated: bool) -> None:
    body, sender = b"".join(chunks), Sender(chunks)
    fields = {b"content-length": b"%d" % len(body)} if stated else {}
    limit = 30
    reading = read_body(sender, fields, limit)
    if len(body) > limit:
        with pytest.raises(TooLargeError, match="may have 30 bytes at most"):
            reading.send(None)
        assert sum(map(len, chunks[: sender.taken])) < limit + 10
    else:
        with pytest.raises(StopIteration) as caught:
            reading.send(None)
        assert caught.value.value == body


async def test_a_stated_length_over_the_limit_is_refused_unread() -> None:
    sender = Sender([b"x"])
    with pytest.raises(TooLargeError):
        await read_body(sender, {b"content-length": b"101"}, 100)
    assert sender.taken == 0


@pytest.mark.parametrize(
    "length", [b"-1", b"+1", b"1_0", b"1.5", b"x", b"", b" 1", b"9" * 5000, b"\xb2"]
)
async def test_a_length_that_is_no_number_is_a_bad_request(length: bytes) -> None:
    with pytest.raises(BadRequestError, match="whole number"):
        await read(b"", content_length=length)
    with pytest.raises(BadRequestError, match="whole number"):
        read_header_length({b"inference-header-content-length": length})


async def test_a_client_that_leaves_within_its_body_is_noticed() -> None:
    with pytest.raises(BadRequestError, match="left"):
        await read_body(Sender([b"ab"], leaves=True), {}, 100)


@pytest.mark.parametrize(
    ("value", "timeout_ms"), [(b"250", 250), (b"0.5", 0.5), (b"007", 7), (b"1e3", 1000)]
)
def test_reads_the_deadline(value: bytes, timeout_ms: float) -> None:
    assert read_timeout_ms({b"x-request-timeout-ms": value}) == timeout_ms
    assert read_timeout_ms({}) is None


@pytest.mark.parametrize(
    "value",
    [
        b"0",
        b"0.0",
        b"-1",
        b"nan",
        b"inf",
        b"1e9",
        b"1e-999",
        b"1_0",
        b"",
        b"x",
        b"86400001",
        b"9" * 400,
    ],
)
def test_a_deadline_that_can_be_none_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequestError, match="milliseconds over 0"):
        read_timeout_ms({b"x-request-timeout-ms": value})


def test_reads_the_priority() -> None:
    assert [read_priority({b"x-request-priority": value}) for value in (b"0", b"1")] == [0, 1]
    assert read_priority({}) == 0
    for value in (b"2", b"-1", b"high", b"", b"\xff", b"01"):
        with pytest.raises(BadRequestError, match="must be 0"):
            read_priority({b"x-request-priority": value})


def test_fields_given_twice_must_agree() -> None:
    check_single([(b"content-length", b"1"), (b"content-length", b"1"), (b"cookie", b"a")] * 2)
    check_single([(b"cookie", b"a"), (b"cookie", b"b"), (b"x-request-id", b"a")])
    with pytest.raises(BadRequestError, match="content-length is given twice"):
        check_single([(b"content-length", b"1"), (b"content-length", b"2")])
