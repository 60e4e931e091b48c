"""Answers of the HTTP interface: encoded outputs, explained errors, counts, and lines of the log.

Large answers are compressed for clients that ask for it. That costs 12 ms per MB of JSON numbers
and halves them, so it pays on links of less than some 300 Mbit/s. A thread does it: zlib gives up
the interpreter's lock.
"""

import gzip
import logging
from typing import Any

import numpy as np
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from deployments.errors import (
    BadRequestError,
    ForbiddenError,
    MethodNotAllowedError,
    ModelError,
    RequestError,
    UnauthorizedError,
    UnsupportedEncodingError,
)
from deployments.haproxy.refusals import REASON_HEADER
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.request_head import HEADER_LENGTH, Headers
from deployments.http.service import Service
from deployments.http.signature import Tensors
from deployments.observability.inference_statistics import RequestTotals
from deployments.observability.request_info import RequestInfo
from deployments.observability.request_log import RequestLog

#: Status, body and header fields; the length of the body and the request id are added.
Answer = tuple[int, bytes, Headers]

JSON = (b"content-type", b"application/json")
BINARY = (b"content-type", b"application/octet-stream")


def json_answer(content: Any, status: int = 200) -> Answer:
    return status, orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), [JSON]


def counted_as(answer: Answer) -> tuple[int, str]:
    """Return the status of an answer and, of a refusal, its reason; "" of other answers."""
    status, _, headers = answer
    if status < 400:
        return status, ""
    return status, dict(headers).get(REASON_HEADER, b"").decode()


def to_http(answer: Answer, more: Headers) -> tuple[bytes, bytes]:
    """Return an answer as bytes, before and after further header lines; `more` come first."""
    status, body, headers = answer
    lines = [b"%b: %b\r\n" % field for field in (*more, *headers)]
    end = b"content-length: %d\r\n\r\n%b" % (len(body), body)
    return b"".join((STATUS_LINE[status], *lines)), end


def error_answer(error: RequestError) -> Answer:
    headers = [JSON]
    if error.reason is not None:
        headers.append((REASON_HEADER, error.reason.encode()))
    if isinstance(error, UnauthorizedError | ForbiddenError):
        headers.append((b"www-authenticate", error.challenge.encode()))
    elif isinstance(error, UnsupportedEncodingError):
        headers.append((b"accept-encoding", b"gzip, deflate"))
    elif isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    elif error.status in (429, 503):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    return error.status, orjson.dumps({"error": str(error)}), headers


def check_method(method: str, *allowed: str) -> None:
    """Raise a `MethodNotAllowedError` unless the method is one of `allowed`."""
    if method not in allowed:
        raise MethodNotAllowedError(
            f"the method must be {' or '.join(allowed)}, not {method!r:.100}", allowed
        )


#: orjson writes NaN and infinity so.
_NULL = b"null"


def encode_response(
    model_name: str, model_version: str, request: InferenceRequest, outputs: Tensors
) -> tuple[bytes, int | None]:
    """Encode outputs of shape ``(request.rows, *spec.shape)`` as the response to `request`.

    Returns the body and the length of its JSON part; None if it is all JSON. `BadRequestError` if
    JSON cannot hold what the request wants as JSON.
    """
    entries: list[dict[str, Any]] = []
    raw: list[memoryview | bytes] = []
    for codec, binary in request.outputs:
        spec = codec.spec
        array = np.ascontiguousarray(outputs[spec.name], codec.dtype)
        entry: dict[str, Any] = {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": array.shape,
        }
        if binary:
            data = codec.to_binary(array)
            entry["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            entry["data"] = codec.to_json(array)
        entries.append(entry)
    content: dict[str, Any] = {"model_name": model_name, "model_version": model_version}
    if request.id is not None:
        content["id"] = request.id
    content["outputs"] = entries
    header = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    if _NULL in header:
        _check_finite(request, outputs)
    return (b"".join((header, *raw)), len(header)) if raw else (header, None)


def _check_finite(request: InferenceRequest, outputs: Tensors) -> None:
    for codec, binary in request.outputs:
        array = outputs[codec.spec.name]
        if not binary and array.dtype.kind == "f" and not np.isfinite(codec.to_json(array)).all():
            raise BadRequestError(
                f"output {codec.spec.name!r} has NaN or infinity, which JSON cannot hold; request "
                "it with binary_data true"
            )


logger = logging.getLogger("sojourn.http")


class Outcomes:
    """Answers the requests to one model, on both ways through the HTTP interface."""

    def __init__(self, model: str) -> None:
        self.totals = RequestTotals()
        self.log = RequestLog(model)

    def success(
        self, request: InferenceRequest, outputs: Tensors, service: Service, arrival_s: float
    ) -> Answer:
        """Count a request; return the answer with its outputs, or raise a `RequestError`."""
        try:
            body, length = encode_response(
                service.model_name, service.model_version, request, outputs
            )
        except RequestError:
            raise
        except Exception:
            logger.exception("failed to encode the model's outputs")
            raise ModelError("the model returned outputs that cannot be encoded") from None
        self.totals.answered(request.rows, arrival_s)
        service.count_answered(request.rows, arrival_s)
        if length is None:
            return 200, body, [JSON]
        return 200, body, [BINARY, (HEADER_LENGTH, b"%d" % length)]

    def failure(self, error: Exception, info: RequestInfo, arrival_s: float) -> Answer:
        """Log a request that failed, and return its answer; only a `RequestError` is explained."""
        if not isinstance(error, RequestError):
            logger.error("internal error while answering a request", exc_info=error)
            error = ModelError("internal error while answering this request")
        self.log.failed(error, info, arrival_s)
        return error_answer(error)


#: Clients such as httpx ask with every request; a smaller answer is quick on any link.
COMPRESSED_FROM_BYTES = 64 << 10
#: The fastest.
_LEVEL = 1


def pays(answer: Answer) -> bool:
    """Return whether an answer is large JSON, which is compressed if its client asks for it."""
    status, body, headers = answer
    return status == 200 and len(body) >= COMPRESSED_FROM_BYTES and headers[0] == JSON


def compressed(answer: Answer) -> Answer:
    status, body, headers = answer
    fields = [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
    return status, gzip.compress(body, _LEVEL), [*headers, *fields]
