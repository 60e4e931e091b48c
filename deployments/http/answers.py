"""Answers of the HTTP interface: what each error becomes, and how clients' texts are quoted."""

import reprlib
from typing import Any

import orjson

from deployments.errors import (
    ForbiddenError,
    MethodNotAllowedError,
    RateLimitedError,
    RequestError,
    UnauthorizedError,
)
from deployments.http.request import Headers

#: Status, body and header fields; the length of the body and the request id are added.
Answer = tuple[int, bytes, Headers]

JSON = (b"content-type", b"application/json")
BINARY = (b"content-type", b"application/octet-stream")

#: Extra header of error responses, by status.
_ERROR_HEADERS = {
    415: (b"accept-encoding", b"gzip, deflate"),
    429: (b"retry-after", b"1"),
    503: (b"retry-after", b"1"),
}

_quoting = reprlib.Repr()
_quoting.maxstring = 120


def json_answer(content: Any, status: int = 200) -> Answer:
    """Return an answer with `content` as JSON."""
    return status, orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), [JSON]


def error_answer(error: RequestError) -> Answer:
    """Return the answer that explains an error."""
    headers = [JSON]
    if isinstance(error, UnauthorizedError | ForbiddenError):
        headers.append((b"www-authenticate", error.challenge.encode()))
    elif isinstance(error, RateLimitedError):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    elif error.status in _ERROR_HEADERS:
        headers.append(_ERROR_HEADERS[error.status])
    elif isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    return error.status, orjson.dumps({"error": str(error)}), headers


def check_method(method: str, *allowed: str) -> None:
    """Check the method of a request.

    Raises
    ------
    MethodNotAllowedError
        It is not one of `allowed`.
    """
    if method not in allowed:
        raise MethodNotAllowedError(
            f"the method must be {' or '.join(allowed)}, not {quote(method)}", allowed
        )


def quote(text: str) -> str:
    """Quote the client's text for an error message: shortened, and always valid Unicode."""
    return _quoting.repr(text)
