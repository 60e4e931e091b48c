"""Bodies of requests: read, decompressed, and bounded in memory."""

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import orjson
import psutil
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from deployments.errors import BadRequestError, BusyError, TooLargeError, UnsupportedEncodingError
from deployments.http.request_head import CONTENT_ENCODING, CONTENT_LENGTH, read_length

#: zlib's `wbits` of each coding: a gzip header, or zlib's own header, which "deflate" means.
_WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
#: A body may unpack to so many times its size, or to so many bytes if that is more.
MAX_UNPACKING_RATIO = 100
_FREE_UNPACKED_BYTES = 1 << 20
#: Bytes decompressed in one go.
_PIECE_BYTES = 256 << 10
#: A larger body is decompressed by a thread.
_IN_THREAD_FROM_BYTES = 64 << 10
#: The default limit: this share of the memory that the process may use, within bounds.
_SHARE_OF_MEMORY = 1 / 32
_LEAST_BYTES, _MOST_BYTES = 64 << 20, 512 << 20
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
#: A larger body needs room in the budget.
SMALL_BODY_BYTES = 64 << 10
#: Of the budget, what one token may take.
TOKEN_SHARE = 0.5
NO_MEMORY = "this replica holds too many large requests; try again later"


def default_limit_bytes() -> int:
    """Return a limit that follows from the memory of this container or machine."""
    total_bytes = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # no container, or "max"
        total_bytes = min(total_bytes, int(_CGROUP_LIMIT.read_text()))
    return min(max(_LEAST_BYTES, int(_SHARE_OF_MEMORY * total_bytes)), _MOST_BYTES)


class BodyBudget:
    """Bytes of large bodies that are being read, or wait for their answer, in all and by token.

    They count as they arrive: a client that only announces a large body takes no room from others.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = default_limit_bytes() if limit_bytes is None else limit_bytes
        self.used_bytes = 0
        self.by_token: Counter[str | None] = Counter()


class Reservation:
    """The part of a budget that one body takes; as a context, until its end."""

    __slots__ = ("_budget", "_bytes", "_token")

    def __init__(self, budget: BodyBudget, token: str | None) -> None:
        self._budget, self._token, self._bytes = budget, token, 0

    def grow_to(self, total_bytes: int) -> None:
        """Reserve up to `total_bytes` in all; small bodies reserve none.

        `BusyError` if there is too little left, or its token has its share already. A single body
        is always let in.
        """
        budget, token, held_bytes = self._budget, self._token, self._bytes
        if total_bytes <= max(held_bytes, SMALL_BODY_BYTES):
            return
        others = budget.used_bytes - held_bytes
        if others and others + total_bytes > budget.limit_bytes:
            raise BusyError(NO_MEMORY, "memory")
        others = budget.by_token[token] - held_bytes
        if token and others and others + total_bytes > TOKEN_SHARE * budget.limit_bytes:
            raise BusyError(f"the token {token!r} has too many large requests here", "memory")
        self._add(total_bytes - held_bytes)

    def release(self) -> None:
        if self._bytes:
            self._add(-self._bytes)

    def _add(self, more_bytes: int) -> None:
        self._bytes += more_bytes
        self._budget.used_bytes += more_bytes
        self._budget.by_token[self._token] += more_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def load_json(body: bytes | memoryview) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not valid JSON: {error}") from None


async def read_body(
    receive: Receive,
    fields: Mapping[bytes, bytes],
    max_body_bytes: int,
    reserve: Callable[[int], None] = lambda total_bytes: None,
) -> bytes:
    """Read the body, and decompress it if Content-Encoding says that it is compressed.

    Reading stops as soon as the body exceeds `max_body_bytes`, and decompression stops there too,
    so a request cannot exhaust memory. `reserve` is called with the bytes that have arrived; it may
    raise what it likes.

    Raises
    ------
    TooLargeError
        The body as sent, or after decompression, is larger than `max_body_bytes`, or it unpacks to
        far more than its size.
    UnsupportedEncodingError
        The Content-Encoding is not supported. Raised before any of the body is read.
    BadRequestError
        The body contradicts its header fields.
    ClientDisconnect
        The client left before the end of the body.
    """
    coding = fields.get(CONTENT_ENCODING, b"").strip().lower()
    compressed = coding not in (b"", b"identity")
    if compressed and coding not in _WINDOW_BITS:
        raise UnsupportedEncodingError("Content-Encoding must be gzip, deflate or identity")
    size = announced = read_length(fields, CONTENT_LENGTH) or 0
    chunks: list[bytes] = []
    received = 0
    while size <= max_body_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        chunks.append(chunk)
        received += len(chunk)
        reserve(received)
        size = max(announced, received)
        if not message.get("more_body", False) and size <= max_body_bytes:
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            if not compressed:
                return body
            if len(body) < _IN_THREAD_FROM_BYTES:
                content = decompress(body, coding, max_body_bytes)
            else:
                content = await asyncio.to_thread(decompress, body, coding, max_body_bytes)
            reserve(len(content))
            return content
    raise TooLargeError(
        f"the body is too large: at most {max_body_bytes} bytes are allowed (limits.max_body_bytes)"
    )


def decompress(body: bytes, coding: bytes, max_body_bytes: int) -> bytes:
    """Decompress a body; errors are those of `read_body`."""
    name = coding.decode()
    decompressor = zlib.decompressobj(_WINDOW_BITS[coding])
    most = max(_FREE_UNPACKED_BYTES, MAX_UNPACKING_RATIO * len(body))
    parts: list[bytes] = []
    size, packed = 0, body
    while not decompressor.eof:
        try:
            part = decompressor.decompress(packed, _PIECE_BYTES)
        except zlib.error:
            raise BadRequestError(f"the body is not valid {name}") from None
        if not packed and not part:
            raise BadRequestError(f"the body is not valid {name}: it ends too early")
        packed = decompressor.unconsumed_tail
        parts.append(part)
        size += len(part)
        if size > max_body_bytes:
            raise TooLargeError(
                f"the decompressed body is too large: at most {max_body_bytes} bytes are allowed "
                "(limits.max_body_bytes)"
            )
        if size > most:
            raise TooLargeError(
                f"the body unpacks to more than {MAX_UNPACKING_RATIO} times its size, and more "
                f"than {_FREE_UNPACKED_BYTES} bytes"
            )
    # Only one member is accepted: a body of thousands of empty ones would waste time.
    if decompressor.unused_data:
        raise BadRequestError(f"the body is not valid {name}: unexpected bytes follow its end")
    return b"".join(parts)
