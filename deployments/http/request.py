"""Read an ASGI request: its header fields, and its body, bounded and decompressed."""

import asyncio
import re
import reprlib
import zlib
from collections.abc import Callable, Iterable, Mapping

from starlette.types import Receive

from deployments.errors import BadRequestError, TooLargeError, UnsupportedEncodingError
from deployments.http.parameters import check_timeout_ms
from deployments.http.priorities import MAX_PRIORITY_LEVELS

HEADER_LENGTH = b"inference-header-content-length"
REQUEST_ID = b"x-request-id"
AUTHORIZATION = b"authorization"
ACCEPT_ENCODING = b"accept-encoding"
#: The rest of a longer request id is cut off.
MAX_REQUEST_ID_BYTES = 128
_CONTENT_LENGTH = b"content-length"
_CONTENT_ENCODING = b"content-encoding"
_PRIORITY = b"x-request-priority"
#: As messages name that field.
PRIORITY_HEADER = "the header X-Request-Priority"
_TIMEOUT_MS = b"x-request-timeout-ms"

#: Fields that change how a request is handled, so two different values would be ambiguous.
_SINGLE_VALUED = (
    *(_CONTENT_ENCODING, _CONTENT_LENGTH, HEADER_LENGTH, _PRIORITY, _TIMEOUT_MS),
    AUTHORIZATION,
)
#: An unsigned JSON number; float() accepts more than that.
_NUMBER = re.compile(rb"\d{1,20}(\.\d{1,20})?([eE][+-]?\d{1,4})?")
_PRIORITY_NUMBER = re.compile(rb"0|[1-9]\d{0,2}")
_MAX_LENGTH_DIGITS = 18
#: zlib's `wbits` of each coding: a gzip header, or zlib's own header, which "deflate" means.
_WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}

#: A body may unpack to so many times its size, or to so many bytes if that is more.
MAX_UNPACKING_RATIO = 100
_FREE_UNPACKED_BYTES = 1 << 20
#: What is decompressed in one go.
_PIECE_BYTES = 256 << 10
#: A larger body is decompressed by a thread.
_IN_THREAD_FROM_BYTES = 64 << 10

Headers = list[tuple[bytes, bytes]]


def check_single_valued(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Reject repeated header fields whose values differ, where only one value can apply.

    Raises
    ------
    BadRequestError
        Such a field occurs with different values.
    """
    for name in _SINGLE_VALUED:
        if len({value for field, value in headers if field == name}) > 1:
            raise BadRequestError(
                f"the header {name.decode()} is given more than once, with different values"
            )


def read_header_length(fields: Mapping[bytes, bytes]) -> int | None:
    """Return the length of the body's JSON part in bytes, or None if the header is absent.

    Raises
    ------
    BadRequestError
        The header is not a whole number.
    """
    return _read_length(fields, HEADER_LENGTH)


def read_content_length(fields: Mapping[bytes, bytes]) -> int | None:
    """Return the length of the body in bytes, or None if the header is absent.

    Raises
    ------
    BadRequestError
        The header is not a whole number.
    """
    return _read_length(fields, _CONTENT_LENGTH)


def read_timeout_ms(fields: Mapping[bytes, bytes]) -> float | None:
    """Return the deadline from the header, in ms after arrival, or None if it is absent.

    Raises
    ------
    BadRequestError
        The header is not a number, or is outside the allowed range.
    """
    value = fields.get(_TIMEOUT_MS)
    if value is None:
        return None
    number = float(value) if _NUMBER.fullmatch(value) else value.decode("latin-1")
    return check_timeout_ms(number, "the header X-Request-Timeout-Ms")


def read_priority(fields: Mapping[bytes, bytes]) -> int:
    """Return the priority from the header, or 0 if it is absent.

    `deployments.http.priorities.PriorityLevels` tells whether the model has it.

    Raises
    ------
    BadRequestError
        The header is not a whole number from 0 to `MAX_PRIORITY_LEVELS`.
    """
    value = fields.get(_PRIORITY)
    if value is None:
        return 0
    if _PRIORITY_NUMBER.fullmatch(value) and int(value) <= MAX_PRIORITY_LEVELS:
        return int(value)
    raise BadRequestError(
        f"{PRIORITY_HEADER} must be a whole number from 0 to {MAX_PRIORITY_LEVELS}, "
        f"not {reprlib.repr(value.decode('latin-1'))}"
    )


async def read_body(
    receive: Receive,
    fields: Mapping[bytes, bytes],
    max_body_bytes: int,
    reserve: Callable[[int], None] = lambda total_bytes: None,
) -> bytes:
    """Read the body, and decompress it if Content-Encoding says that it is compressed.

    Reading stops as soon as the body exceeds `max_body_bytes`, and decompression stops there too,
    so a request cannot exhaust memory. `reserve` is called with the bytes of the body that are
    known of, before they are read; it may raise what it likes.

    Raises
    ------
    TooLargeError
        The body as sent, or after decompression, is larger than `max_body_bytes`.
    UnsupportedEncodingError
        The Content-Encoding is not supported. Raised before any of the body is read.
    BadRequestError
        The body contradicts its header fields, unpacks to far more than its size, or the client
        disconnected before its end.
    """
    coding = fields.get(_CONTENT_ENCODING, b"").strip().lower()
    compressed = coding not in (b"", b"identity")
    if compressed and coding not in _WINDOW_BITS:
        raise UnsupportedEncodingError("Content-Encoding must be gzip, deflate or identity")
    size = announced = read_content_length(fields) or 0
    chunks: list[bytes] = []
    received = 0
    while size <= max_body_bytes:
        reserve(size)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequestError("the client disconnected before it had sent the whole body")
        chunk = message.get("body", b"")
        chunks.append(chunk)
        received += len(chunk)
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
    """Decompress a body.

    Raises
    ------
    BadRequestError, TooLargeError
        As `read_body` raises them.
    """
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


def _read_length(fields: Mapping[bytes, bytes], name: bytes) -> int | None:
    """Return a header field that is a number of bytes, or None if it is absent."""
    value = fields.get(name)
    if value is None:
        return None
    # int() also accepts signs and underscores, and takes quadratic time in the digits.
    if not value.isdigit() or len(value) > _MAX_LENGTH_DIGITS:
        raise BadRequestError(f"the header {name.decode()} must be a whole number of bytes")
    return int(value)
