import gzip
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.errors import BadRequestError, TooLargeError, UnsupportedEncodingError
from deployments.http.request_body import MAX_UNPACKING_RATIO, read_body

PACK: dict[bytes, Any] = {
    b"gzip": gzip.compress,
    b"x-gzip": gzip.compress,
    b"deflate": zlib.compress,
}
CODINGS = pytest.mark.parametrize("coding", [b"gzip", b"deflate"])


class Sender:
    def __init__(self, *chunks):
        self.chunks, self.taken = chunks, 0

    async def __call__(self):
        assert self.taken < len(self.chunks), "the body was read beyond its end"
        chunk = self.chunks[self.taken]
        self.taken += 1
        more = self.taken < len(self.chunks)
        return {"type": "http.request", "body": chunk, "more_body": more}


async def unpack(body, coding, max_body_bytes=100):
    return await read_body(Sender(body), {b"content-encoding": coding}, max_body_bytes)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"GZIP", b" Deflate "])
async def test_compressed_bodies_are_decompressed_up_to_the_limit(coding):
    packed = PACK[coding.strip().lower()](b"x" * 100)
    assert await unpack(packed, coding, 100) == b"x" * 100
    with pytest.raises(TooLargeError, match="decompressed body is too large: at most 99 bytes"):
        await unpack(packed, coding, 99)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        *((b"content-encoding", coding, UnsupportedEncodingError) for coding in (b"br", b"\xff")),
        (b"content-encoding", b"gzip, gzip", UnsupportedEncodingError),
        (b"content-length", b"101", TooLargeError),
        (b"content-length", b"x", BadRequestError),
    ],
)
async def test_what_the_head_shows_is_rejected_before_reading(name, value, error):
    sender = Sender(b"x")
    with pytest.raises(error):
        await read_body(sender, {name: value}, 100)
    assert sender.taken == 0


@CODINGS
async def test_a_bomb_is_never_decompressed_beyond_the_limit(coding):
    bomb = PACK[coding](bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError):
            await unpack(bomb, coding, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


async def test_the_ratio_of_unpacking_is_bounded_beyond_a_mebibyte():
    largest, larger = gzip.compress(bytes(1 << 20)), gzip.compress(bytes((1 << 20) + 1))
    assert MAX_UNPACKING_RATIO * len(larger) < 1 << 20
    assert len(await unpack(largest, b"gzip", 4 << 20)) == 1 << 20
    with pytest.raises(TooLargeError, match="100 times its size"):
        await unpack(larger, b"gzip", 4 << 20)
    # What compresses less may be larger.
    content = np.random.default_rng(1).integers(48, 58, 3_000_000, np.uint8).tobytes()
    assert await unpack(gzip.compress(content, 1), b"gzip", 4 << 20) == content


@CODINGS
@pytest.mark.parametrize(
    ("corrupt", "problem"),
    [
        (lambda packed: packed[:-1], "ends too early"),
        (lambda packed: b"", "ends too early"),
        (lambda packed: packed + b"x", "unexpected bytes follow"),
        (lambda packed: packed + packed, "unexpected bytes follow"),
        (lambda packed: b"{}" + packed, "not valid"),
        (lambda packed: packed[:-4] + b"\xff" * 4, "not valid"),
    ],
)
async def test_a_corrupt_stream_is_a_bad_request(coding, corrupt, problem):
    with pytest.raises(BadRequestError, match=problem):
        await unpack(corrupt(PACK[coding](b"some content")), coding)


@given(chunks=st.lists(st.binary(max_size=9), min_size=1, max_size=9), announced=st.booleans())
def test_chunks_are_joined_up_to_the_limit(chunks, announced):
    body, sender, limit = b"".join(chunks), Sender(*chunks), 30
    fields = {b"content-length": b"%d" % len(body)} if announced else {}
    reading = read_body(sender, fields, limit)
    if len(body) > limit:
        with pytest.raises(TooLargeError, match="at most 30 bytes are allowed"):
            reading.send(None)
        assert sum(map(len, chunks[: sender.taken])) < limit + 10
    else:
        with pytest.raises(StopIteration) as caught:
            reading.send(None)
        assert caught.value.value == body


async def test_room_is_reserved_for_what_arrives_and_for_what_it_unpacks_to():
    packed, reserved = gzip.compress(b"x" * 50_000), list[int]()
    chunks, fields = Sender(packed[:9], packed[9:]), {b"content-encoding": b"gzip"}
    await read_body(chunks, fields, 100_000, reserved.append)
    assert reserved == [9, len(packed), 50_000]
