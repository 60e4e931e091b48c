"""A request as ASGI hands it over: its header fields, and its body, bounded and unpacked."""

import re
import zlib
from collections.abc import Iterable, Mapping

from starlette.types import Receive

from deployments.errors import BadRequestError, TooLargeError, UnsupportedEncodingError
from deployments.http.inference_protocol import check_priority, check_timeout_ms

HEADER_LENGTH = b"inference-header-content-length"
REQUEST_ID = b"x-request-id"
_CONTENT_LENGTH = b"content-length"
_CONTENT_ENCODING = b"content-encoding"
_PRIORITY = b"x-request-priority"
_TIMEOUT_MS = b"x-request-timeout-ms"

#: Fields that change what is done: two that differ leave open which is meant.
_SINGLE = (_CONTENT_ENCODING, _CONTENT_LENGTH, HEADER_LENGTH, _PRIORITY, _TIMEOUT_MS)
#: A number as JSON writes it, without a sign; float() takes more.
_NUMBER = re.compile(rb"\d{1,20}(\.\d{1,20})?([eE][+-]?\d{1,4})?")
_MOST_DIGITS = 18
#: What zlib takes for each coding: a gzip header, or zlib's own, which "deflate" means.
_WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}

Headers = list[tuple[bytes, bytes]]


def check_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse header fields that are given twice, and differ, where only one can be meant.

    Raises
    ------
    BadRequestError
        There are such.
    """
    for name in _SINGLE:
        if len({value for field, value in headers if field == name}) > 1:
            raise BadRequestError(f"the header {name.decode()} is given twice, and differs")


def read_header_length(fields: Mapping[bytes, bytes]) -> int | None:
    """Give the length of the body's JSON part; None where it is not given.

    Raises
    ------
    BadRequestError
        It is no whole number.
    """
    return _whole_number(fields, HEADER_LENGTH)


def read_timeout_ms(fields: Mapping[bytes, bytes]) -> float | None:
    """Give the deadline that the header sets, in ms after the arrival; None where there is none.

    Raises
    ------
    BadRequestError
        It is no number, or not one that can be a deadline.
    """
    value = fields.get(_TIMEOUT_MS)
    if value is None:
        return None
    number = float(value) if _NUMBER.fullmatch(value) else value.decode("latin-1")
    return check_timeout_ms(number, "the header X-Request-Timeout-Ms")


def read_priority(fields: Mapping[bytes, bytes]) -> int:
    """Give the priority that the header sets; 0 where there is none.

    Raises
    ------
    BadRequestError
        It is no priority.
    """
    value = fields.get(_PRIORITY)
    if value is None:
        return 0
    number = int(value) if value in (b"0", b"1") else value.decode("latin-1")
    return check_priority(number, "the header X-Request-Priority")


async def read_body(receive: Receive, fields: Mapping[bytes, bytes], max_body_bytes: int) -> bytes:
    """Read the body, and unpack it where Content-Encoding says that it is packed.

    Neither what is sent nor what it unpacks to is ever held beyond `max_body_bytes`.

    Raises
    ------
    TooLargeError
        Either is larger.
    UnsupportedEncodingError
        It is packed in an unknown way; known before any of it is read.
    BadRequestError
        It is not what its header fields say, or the client left before it was whole.
    """
    coding = fields.get(_CONTENT_ENCODING, b"").strip().lower()
    packed = coding not in (b"", b"identity")
    if packed and coding not in _WINDOW_BITS:
        raise UnsupportedEncodingError("Content-Encoding must be gzip, deflate or identity")
    size = stated = _whole_number(fields, _CONTENT_LENGTH) or 0
    chunks: list[bytes] = []
    received = 0
    while size <= max_body_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequestError("the client left before its request was whole")
        chunk = message.get("body", b"")
        chunks.append(chunk)
        received += len(chunk)
        size = max(stated, received)
        if not message.get("more_body", False) and size <= max_body_bytes:
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            return _unpacked(body, coding, max_body_bytes) if packed else body
    raise TooLargeError(f"the body may have {max_body_bytes} bytes at most")


def _unpacked(body: bytes, coding: bytes, max_body_bytes: int) -> bytes:
    name = coding.decode()
    unpacker = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        # One byte more than allowed tells what is too large from what just fits.
        content = unpacker.decompress(body, max_body_bytes + 1)
    except zlib.error:
        raise BadRequestError(f"the body is not valid {name}") from None
    if len(content) > max_body_bytes:
        raise TooLargeError(f"the body may unpack to {max_body_bytes} bytes at most")
    if not unpacker.eof:
        raise BadRequestError(f"the body ends within its {name} stream")
    # A body of thousands of empty gzip members would cost time for nothing: one has to do.
    if unpacker.unused_data:
        raise BadRequestError(f"bytes follow the end of the body's {name} stream")
    return content


def _whole_number(fields: Mapping[bytes, bytes], name: bytes) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    # int() also takes signs, underscores and, slowly, any number of digits.
    if not value.isdigit() or len(value) > _MOST_DIGITS:
        raise BadRequestError(f"the header {name.decode()} must be a whole number of bytes")
    return int(value)
