"""The replica's HTTP protocol: uvicorn's, with a short way for ordinary inference requests.

uvicorn makes a scope, a task and an event for each request, and passes events between them. An
ordinary inference request (`deployments.http.request_head`) needs none of that: it is parsed where
its last bytes are read, and a callback of its batch writes the answer. Everything else, and
whatever follows it on the connection until it is answered, goes to uvicorn's own protocol and so to
the ASGI app.

Each connection has one request at a time in the batcher. Pipelined requests wait until those before
them are answered, and reading pauses meanwhile.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from deployments.access.control import INFERENCE
from deployments.batcher.submission import Cancellable, Outcome
from deployments.errors import BusyError, DeadlineError, RequestError
from deployments.http.app import ARRIVAL, FULL, Answer, InferenceApp
from deployments.http.inference_protocol import InferenceRequest, parse_request
from deployments.http.refusals import RefusalPacer
from deployments.http.request import REQUEST_ID
from deployments.http.request_head import END_OF_HEAD, RequestHead, RequestHeads
from deployments.observability.request_info import RequestInfo

_ID_LINE = REQUEST_ID + b": "


@dataclass
class HostedApp:
    """An app whose inference requests take the short way.

    Parameters
    ----------
    app : InferenceApp
    loop : AbstractEventLoop
        The event loop of the app's batcher; only connections on this loop take the short way.
    root_path : str
        The application's URL prefix.
    """

    app: InferenceApp
    loop: asyncio.AbstractEventLoop
    root_path: str = ""
    heads: RequestHeads = field(init=False)
    pacer: RefusalPacer = field(init=False)
    _default_headers: list[tuple[bytes, bytes]] | None = field(default=None, init=False)
    _default_lines: bytes = field(default=b"", init=False)
    _refusal: tuple[bytes, bytes] = field(default=(b"", b""), init=False)

    def __post_init__(self) -> None:
        path = (self.root_path + self.app.infer_path).encode()
        self.heads = RequestHeads(path, self.app.unusual_fields)
        self.pacer = RefusalPacer(self.loop, self.app.service.front_meter)

    def default_lines(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the header lines that uvicorn adds to every answer; it renews them each second."""
        if headers is not self._default_headers:
            self._default_headers, self._default_lines = headers, _lines(headers)
            status, body, fields = self.app.failure(BusyError(FULL))
            self._refusal = (
                STATUS_LINE[status] + self._default_lines + _lines(fields),
                b"content-length: %d\r\n\r\n" % len(body) + body,
            )
        return self._default_lines

    def refusal(self, headers: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
        """Return the answer to requests for which there is no room, before and after the id."""
        if headers is not self._default_headers:
            self.default_lines(headers)
        return self._refusal


class InferenceProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with a short way to the hosted app.

    Attributes
    ----------
    hosted : HostedApp or None
        The app of this process; None: all requests go to uvicorn's own protocol.
    """

    hosted: ClassVar[HostedApp | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Whether uvicorn's parser is inside a message.
        self._in_message = False
        #: The request on the short way, from its head until it is answered.
        self._head: RequestHead | None = None
        self._info = RequestInfo(b"")
        self._request: InferenceRequest | None = None
        self._call: Cancellable | None = None
        #: When it could first have been read, less the time for which its sender paused.
        self._arrival_s = self._last_read_s = 0.0
        #: What was read of an incomplete body, and how many bytes are missing.
        self._chunks: list[bytes] = []
        self._missing = 0
        #: What was read after an unanswered request.
        self._held = b""
        self._stopping = False
        self._last_answer_s = 0.0
        # uvicorn's access log and its limit of connections belong to its own way.
        self._short_way = not self.access_log and self.limit_concurrency is None

    def data_received(self, data: bytes) -> None:
        """Take what was read."""
        if self._missing:
            self._read_body(data)
        elif self._head is not None or self._held:
            self._hold(data)
        else:
            self._read(data)

    def _read(self, data: bytes) -> None:
        """Take bytes from the start of a request, or from within one on uvicorn's way."""
        hosted = self.hosted
        if (
            hosted is None
            or self._in_message
            or hosted.loop is not self.loop
            or not self._short_way
            or (self.cycle is not None and not self.cycle.response_complete)
        ):
            super().data_received(data)
            return
        end = data.find(END_OF_HEAD)
        head, request_id, traceparent = (
            hosted.heads.find(data, end) if end >= 0 else (None, None, None)
        )
        service = hosted.app.service
        start = end + len(END_OF_HEAD)
        if (
            head is None
            or head.body_length > service.max_body_bytes
            # The app denies it before the rest of its body has arrived.
            or (
                len(data) < start + head.body_length
                and not service.access.allows(head.authorization, INFERENCE)
            )
        ):
            super().data_received(data)
            return
        if self.flow.write_paused:
            self._hold(data)
            return
        self._head = head
        self._info = RequestInfo(request_id or hosted.app.request_ids.make(), traceparent)
        self._last_read_s = now_s = time.monotonic()
        self._arrival_s = service.front_meter.request_read(now_s)
        stop = start + head.body_length
        if len(data) < stop:
            self._chunks.append(data[start:])
            self._missing = stop - len(data)
            return
        if len(data) > stop:
            self._hold(data[stop:])
        self._handle(data[start:stop])

    def _read_body(self, data: bytes) -> None:
        assert self.hosted is not None
        now_s = time.monotonic()
        since_s = self.hosted.app.service.front_meter.readable_since_s(now_s)
        # A slow sender's time is not the replica's: only what could have been read sooner counts.
        self._arrival_s += max(0.0, since_s - self._last_read_s)
        self._last_read_s = now_s
        rest = data[self._missing :]
        self._chunks.append(data[: self._missing])
        self._missing -= len(data) - len(rest)
        if self._missing:
            return
        body = b"".join(self._chunks)
        self._chunks.clear()
        if rest:
            self._hold(rest)
        self._handle(body)

    def _hold(self, data: bytes) -> None:
        """Keep pipelined requests until the one before them is answered."""
        self._held += data
        self.flow.pause_reading()

    def _handle(self, body: bytes) -> None:
        """Answer the request, or queue it for the batcher."""
        hosted, head = self.hosted, self._head
        assert hosted is not None
        assert head is not None
        app = hosted.app
        service, info = app.service, self._info
        try:
            info.token = service.access.admit(head.authorization, INFERENCE, time.monotonic())
            if not service.has_room(body, self._arrival_s):
                app.log_failure(BusyError.status, FULL, info, self._arrival_s)
                start, end = hosted.refusal(self.server_state.default_headers)
                hosted.pacer.add(self, start, end)
                return
            self._request = parse_request(
                body, head.header_length, service.signature, head.timeout_ms, head.priority
            )
            if service.tracing.on:
                info.trace = service.tracing.begin(
                    info.traceparent, info.request_id, self._arrival_s
                )
            self._call = service.infer_nowait(
                self._request, self._arrival_s, self._answered, info.trace
            )
        except Exception as error:
            answer = app.failure(error, info, self._arrival_s)
            self._end_trace(answer[0])
            start, end = self._encode(answer)
            hosted.pacer.add(self, start, end, too_late=isinstance(error, DeadlineError))

    def _answered(self, outcome: Outcome) -> None:
        """Write the outcome of the request."""
        assert self.hosted is not None
        assert self._request is not None
        app = self.hosted.app
        try:
            if isinstance(outcome, RequestError):
                raise outcome
            answer = app.success(self._request, outcome)
        except Exception as error:
            answer = app.failure(error, self._info, self._arrival_s)
        self._end_trace(answer[0])
        self._request = self._call = None
        self.write(*self._encode(answer))

    def _end_trace(self, status: int) -> None:
        """Make the spans of the request, if it is traced."""
        info = self._info
        if info.trace is not None:
            assert self.hosted is not None
            assert self._request is not None
            self.hosted.app.service.tracing.end(info.trace, status, self._request.rows, info.token)

    def _go_on(self) -> None:
        held, self._held = self._held, b""
        self.flow.resume_reading()
        self.data_received(held)

    def _encode(self, answer: Answer) -> tuple[bytes, bytes]:
        """Return an answer as bytes, before and after the request id."""
        assert self.hosted is not None
        status, body, headers = answer
        lines = self.hosted.default_lines(self.server_state.default_headers)
        return (
            b"".join((STATUS_LINE[status], lines, _lines(headers))),
            b"content-length: %d\r\n\r\n%b" % (len(body), body),
        )

    def write(self, start: bytes, end: bytes) -> None:
        """Write an answer, given before and after the request id, and go on with the next request.

        Nothing is written if the client has left.
        """
        if self._head is None:
            return
        self._head = None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        start = b"%b%b%b\r\n" % (start, _ID_LINE, self._info.request_id)
        if self._stopping:
            start += b"connection: close\r\n"
        self.transport.write(start + end)
        if self._stopping:
            self.transport.close()
            return
        self._last_answer_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._expect_request(self.timeout_keep_alive)
        if self._held and not self.flow.write_paused:
            self._go_on()

    def _expect_request(self, within_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            within_s, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it was idle for the keep-alive timeout."""
        self.timeout_keep_alive_task = None
        if self._head is not None:
            return  # its answer sets the timer again
        left_s = self._last_answer_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._expect_request(left_s)
        else:
            super().timeout_keep_alive_handler()

    def on_message_begin(self) -> None:
        """Note that uvicorn's parser is inside a message, and when that could have been read."""
        self._in_message = True
        super().on_message_begin()
        hosted = self.hosted
        if hosted is not None and hosted.loop is self.loop:
            arrival_s = hosted.app.service.front_meter.request_read(time.monotonic())
            self.scope[ARRIVAL] = arrival_s  # type: ignore[literal-required]

    def on_message_complete(self) -> None:
        """Note that uvicorn's parser is between two messages."""
        self._in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Note when the connection became idle."""
        self._last_answer_s = self.loop.time()
        super().on_response_complete()

    def resume_writing(self) -> None:
        """Go on with held requests once the client has read enough of its answers."""
        super().resume_writing()
        if self._held and self._head is None:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up the client's request."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._head, self._held, self._missing = None, b"", 0
        self._chunks.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def shutdown(self) -> None:
        """Close the connection, after the answer to the request that was accepted."""
        if self._head is None:
            super().shutdown()
        else:
            self._stopping = True


def _lines(headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
