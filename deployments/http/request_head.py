"""The heads of requests: their fields, and those of ordinary inference requests, parsed once.

Clients and balancers send the same head with every request, but for a request id, a `traceparent`
and sometimes the length of the body. So the bytes of a head, without the first two, are the key of
what they say. A head that was not seen before is parsed by llhttp, as uvicorn parses it.
"""

import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import httptools

from deployments.access.web_pages import is_foreign
from deployments.errors import BadRequestError
from deployments.haproxy.refusals import ONLY_REPLICA_HEADER
from deployments.http.signature import MAX_PRIORITY_LEVELS, PRIORITY_HEADER, check_timeout_ms
from deployments.observability.request_info import TRACEPARENT

HEADER_LENGTH = b"inference-header-content-length"
REQUEST_ID = b"x-request-id"
AUTHORIZATION = b"authorization"
ACCEPT_ENCODING = b"accept-encoding"
CONTENT_ENCODING = b"content-encoding"
CONTENT_LENGTH = b"content-length"
_PRIORITY = b"x-request-priority"
_TIMEOUT_MS = b"x-request-timeout-ms"
#: The rest of a longer request id is cut off.
MAX_REQUEST_ID_BYTES = 128
#: The largest head of a request, and the most header fields.
MAX_HEAD_BYTES = 64 << 10
MAX_FIELDS = 256

#: Fields that change how a request is handled, so two different values would be ambiguous.
_SINGLE_VALUED = (
    *(CONTENT_ENCODING, CONTENT_LENGTH, HEADER_LENGTH, _PRIORITY, _TIMEOUT_MS),
    AUTHORIZATION,
)
#: An unsigned JSON number; float() accepts more than that.
_NUMBER = re.compile(rb"\d{1,20}(\.\d{1,20})?([eE][+-]?\d{1,4})?")
_PRIORITY_NUMBER = re.compile(rb"0|[1-9]\d{0,2}")
_MAX_LENGTH_DIGITS = 18

_NO_WEIGHT = re.compile(rb"\s*q\s*=\s*0(\.0*)?\s*")

Headers = list[tuple[bytes, bytes]]

END_OF_HEAD = b"\r\n\r\n"
#: As HAProxy writes them. Other spellings are parsed with the rest of the head.
_REQUEST_ID_LINE = b"\r\n" + REQUEST_ID + b": "
_TRACEPARENT_LINE = b"\r\n" + TRACEPARENT + b": "
_NOT_ORDINARY = None, None, None
_PRINTABLE = re.compile(rb"[\x21-\x7e]+")
#: Heads to remember, and the longest one, in bytes.
_HEADS = 512
_LONGEST_HEAD = 4096
#: A longer head goes to uvicorn's own protocol, which counts what it reads.
_LONGEST_ORDINARY_HEAD = 16 << 10
#: Fields that make a request one for uvicorn's own protocol, whatever their value.
_UNUSUAL = frozenset({b"transfer-encoding", b"expect", b"content-encoding"})


class RequestHead(NamedTuple):
    """The head of an ordinary inference request.

    `header_length` is that of the body's JSON part, `timeout_ms` counts from arrival. `request_id`
    and `traceparent` are these headers, unless they are in lines that the key leaves out. `gzip`: a
    large answer may be compressed. `only_replica`: HAProxy has no other replica to ask.
    `is_foreign`: it may come from a web page.
    """

    body_length: int
    header_length: int | None
    timeout_ms: float | None
    priority: int
    request_id: bytes | None
    traceparent: bytes | None = None
    authorization: bytes | None = None
    gzip: bool = False
    only_replica: bool = False
    is_foreign: bool = False


class HeaderCache:
    """The heads of ordinary inference requests to one path.

    A request is ordinary if it is a POST of HTTP/1.1 to exactly that path, on a connection that
    stays open, with a valid Content-Length and without anything that needs uvicorn's protocol:
    chunks, an encoding or an expectation. An offer to upgrade the connection is ignored.
    """

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._heads: dict[bytes, RequestHead | None] = {}

    def find(self, data: bytes, end: int) -> tuple[RequestHead | None, bytes | None, bytes | None]:
        """Return the head at the start of `data`, and its request id and traceparent, if any.

        The head is None if the request is not ordinary.
        """
        if end > _LONGEST_ORDINARY_HEAD:
            return _NOT_ORDINARY
        key, request_id = _cut(data[:end], _REQUEST_ID_LINE)
        traceparent = None
        head = self._heads.get(key)  # if it is there, there is nothing else to cut off
        if head is None:
            key, traceparent = _cut(key, _TRACEPARENT_LINE)
            head = self._parsed(key)
        if head is None:
            return _NOT_ORDINARY
        if request_id is None:
            request_id = head.request_id
        elif head.request_id is not None or not _PRINTABLE.fullmatch(request_id):
            return _NOT_ORDINARY
        if traceparent is None:
            traceparent = head.traceparent
        elif head.traceparent is not None or not _PRINTABLE.fullmatch(traceparent):
            return _NOT_ORDINARY
        return head, request_id and request_id[:MAX_REQUEST_ID_BYTES], traceparent

    def _parsed(self, key: bytes) -> RequestHead | None:
        try:
            return self._heads[key]
        except KeyError:
            head = parse_head(key + END_OF_HEAD, self._path)
            if len(key) <= _LONGEST_HEAD and _TRACEPARENT_LINE not in key:
                if len(self._heads) >= _HEADS:
                    self._heads.clear()
                self._heads[key] = head
            return head


def _cut(head: bytes, start_of_line: bytes) -> tuple[bytes, bytes | None]:
    """Return a head without one of its lines, and the value in that line."""
    at = head.find(start_of_line)
    if at < 0:
        return head, None
    start = at + len(start_of_line)
    stop = head.find(b"\r\n", start)
    if stop < 0:  # the head's last line ends where the head does
        stop = len(head)
    return head[:at] + head[stop:], head[start:stop]


class _Collector:
    """Takes what llhttp finds in a head."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


def parse_head(head: bytes, path: bytes) -> RequestHead | None:
    """Parse a head with its final empty line; return None if it is not of an ordinary request."""
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # the parser would skip the body
    except httptools.HttpParserError:
        return None
    headers = collector.headers
    fields = dict(headers)
    if (
        not collector.complete
        or collector.url != path
        or parser.get_method() != b"POST"
        or parser.get_http_version() != "1.1"
        or not parser.should_keep_alive()
        or len(headers) > MAX_FIELDS
        or not _UNUSUAL.isdisjoint(fields)
        or sum(name == REQUEST_ID for name, _ in headers) > 1
    ):
        return None
    try:
        check_single_valued(headers)
        body_length, request_id = read_length(fields, CONTENT_LENGTH), fields.get(REQUEST_ID)
        if body_length is None:
            return None
        return RequestHead(
            body_length,
            read_length(fields, HEADER_LENGTH),
            read_timeout_ms(fields),
            read_priority(fields),
            request_id and request_id[:MAX_REQUEST_ID_BYTES],
            fields.get(TRACEPARENT),
            fields.get(AUTHORIZATION),
            accepts_gzip(fields),
            ONLY_REPLICA_HEADER in fields,
            is_foreign(fields),
        )
    except BadRequestError:
        return None  # the app explains what is wrong


def check_single_valued(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise a `BadRequestError` if fields differ of which only one value can apply."""
    for name in _SINGLE_VALUED:
        if len({value for field, value in headers if field == name}) > 1:
            raise BadRequestError(
                f"the header {name.decode()} is given more than once, with different values"
            )


def read_timeout_ms(fields: Mapping[bytes, bytes]) -> float | None:
    """Return the deadline from the header, in ms after arrival, or None if it is absent."""
    value = fields.get(_TIMEOUT_MS)
    if value is None:
        return None
    number = float(value) if _NUMBER.fullmatch(value) else value.decode("latin-1")
    return check_timeout_ms(number, "the header X-Request-Timeout-Ms")


def read_priority(fields: Mapping[bytes, bytes]) -> int:
    """Return the priority from the header, which the model may not have, or 0 without one."""
    value = fields.get(_PRIORITY)
    if value is None:
        return 0
    if _PRIORITY_NUMBER.fullmatch(value) and int(value) <= MAX_PRIORITY_LEVELS:
        return int(value)
    raise BadRequestError(
        f"{PRIORITY_HEADER} must be a whole number from 0 to {MAX_PRIORITY_LEVELS}, "
        f"not {reprlib.repr(value.decode('latin-1'))}"
    )


def read_length(fields: Mapping[bytes, bytes], name: bytes) -> int | None:
    """Return a header field that is a number of bytes, or None if it is absent."""
    value = fields.get(name)
    if value is None:
        return None
    # int() also accepts signs and underscores, and takes quadratic time in the digits.
    if not value.isdigit() or len(value) > _MAX_LENGTH_DIGITS:
        raise BadRequestError(f"the header {name.decode()} must be a whole number of bytes")
    return int(value)


def accepts_gzip(fields: Mapping[bytes, bytes]) -> bool:
    """Return whether the header Accept-Encoding allows gzip (RFC 9110, section 12.5.3)."""
    accepted = fields.get(ACCEPT_ENCODING, b"").lower()
    parts = {
        name.strip(): weight
        for name, _, weight in (part.partition(b";") for part in accepted.split(b","))
    }
    weight = parts.get(b"gzip", parts.get(b"*"))
    return weight is not None and not _NO_WEIGHT.fullmatch(weight)
