"""Read an ASGI request: its header fields, and its body, bounded and decompressed."""

import re
import zlib
from collections.abc import Iterable, Mapping

from starlette.types import Receive

from deployments.errors import BadRequestError, TooLargeError, UnsupportedEncodingError
from deployments.http.parameters import check_priority, check_timeout_ms

HEADER_LENGTH = b"inference-header-content-length"
REQUEST_ID = b"x-request-id"
AUTHORIZATION = b"authorization"
_CONTENT_LENGTH = b"content-length"
_CONTENT_ENCODING = b"content-encoding"
_PRIORITY = b"x-request-priority"
_TIMEOUT_MS = b"x-request-timeout-ms"

#: Fields that change how a request is handled, so two different values would be ambiguous.
_SINGLE_VALUED = (
    *(_CONTENT_ENCODING, _CONTENT_LENGTH, HEADER_LENGTH, _PRIORITY, _TIMEOUT_MS),
    AUTHORIZATION,
)
#: An unsigned JSON number; float() accepts more than that.
_NUMBER = re.compile(rb"\d{1,20}(\.\d{1,20})?([eE][+-]?\d{1,4})?")
_MAX_LENGTH_DIGITS = 18
#: zlib's `wbits` of each coding: a gzip header, or zlib's own header, which "deflate" means.
_WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}

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

    Raises
    ------
    BadRequestError
        The header is not a valid priority.
    """
    value = fields.get(_PRIORITY)
    if value is None:
        return 0
    number = int(value) if value in (b"0", b"1") else value.decode("latin-1")
    return check_priority(number, "the header X-Request-Priority")


async def read_body(receive: Receive, fields: Mapping[bytes, bytes], max_body_bytes: int) -> bytes:
    """Read the body, and decompress it if Content-Encoding says that it is compressed.

    Reading stops as soon as the body exceeds `max_body_bytes`, and decompression stops there too,
    so a request cannot exhaust memory.

    Raises
    ------
    TooLargeError
        The body as sent, or after decompression, is larger than `max_body_bytes`.
    UnsupportedEncodingError
        The Content-Encoding is not supported. Raised before any of the body is read.
    BadRequestError
        The body contradicts its header fields, or the client disconnected before its end.
    """
    coding = fields.get(_CONTENT_ENCODING, b"").strip().lower()
    compressed = coding not in (b"", b"identity")
    if compressed and coding not in _WINDOW_BITS:
        raise UnsupportedEncodingError("Content-Encoding must be gzip, deflate or identity")
    size = announced = read_content_length(fields) or 0
    chunks: list[bytes] = []
    received = 0
    while size <= max_body_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequestError("the client disconnected before it had sent the whole body")
        chunk = message.get("body", b"")
        chunks.append(chunk)
        received += len(chunk)
        size = max(announced, received)
        if not message.get("more_body", False) and size <= max_body_bytes:
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            return _decompress(body, coding, max_body_bytes) if compressed else body
    raise TooLargeError(f"the body is too large: at most {max_body_bytes} bytes are allowed")


def _decompress(body: bytes, coding: bytes, max_body_bytes: int) -> bytes:
    name = coding.decode()
    decompressor = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        # One byte more than allowed distinguishes a body that just fits from one that does not.
        content = decompressor.decompress(body, max_body_bytes + 1)
    except zlib.error:
        raise BadRequestError(f"the body is not valid {name}") from None
    if len(content) > max_body_bytes:
        raise TooLargeError(
            f"the decompressed body is too large: at most {max_body_bytes} bytes are allowed"
        )
    if not decompressor.eof:
        raise BadRequestError(f"the body is not valid {name}: it ends too early")
    # Only one member is accepted: a body of thousands of empty ones would waste time.
    if decompressor.unused_data:
        raise BadRequestError(f"the body is not valid {name}: unexpected bytes follow its end")
    return content


def _read_length(fields: Mapping[bytes, bytes], name: bytes) -> int | None:
    """Return a header field that is a number of bytes, or None if it is absent."""
    value = fields.get(name)
    if value is None:
        return None
    # int() also accepts signs and underscores, and takes quadratic time in the digits.
    if not value.isdigit() or len(value) > _MAX_LENGTH_DIGITS:
        raise BadRequestError(f"the header {name.decode()} must be a whole number of bytes")
    return int(value)
