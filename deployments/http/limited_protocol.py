"""uvicorn's HTTP protocol with limits, for all that comes on a connection.

uvicorn waits for the rest of a request for ever, keeps heads of any size, and answers what is not
HTTP in plain text. Here heads, trailers and bodies are limited in size and time, clients must read
their answers, and errors are JSON.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from deployments.errors import (
    BadRequestError,
    HeadTooLargeError,
    RequestError,
    RequestTimeoutError,
)
from deployments.haproxy.replica_sockets import peer_of
from deployments.http.answers import error_answer, to_http
from deployments.http.app import ARRIVAL, InferenceApp
from deployments.http.hosted_app import HostedApp
from deployments.http.request_head import CONTENT_LENGTH, MAX_FIELDS, MAX_HEAD_BYTES
from deployments.http.service import Service

#: How long a client may read nothing of its answer.
READ_TIMEOUT_S = 30.0
#: How long a client may go on sending after the answer with which its connection ends.
LINGER_S = 1.0


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits, and errors as JSON.

    Each connection has two timers at most, and sets none while whole requests come in one piece.
    """

    #: The app that this process hosts, if it does, on the event loop of all connections.
    hosted: ClassVar[HostedApp | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: The app that counts the connection, and the address of the HAProxy if it is one's.
        self._app: InferenceApp | None = None
        self._haproxy: str | None = None

        #: The request that the app answers; those that came after it wait.
        self._answering: RequestResponseCycle | None = None
        # The parser: where it is in a message, and what it was fed since its last callback.
        self._in_head = self._in_body = self._progress = False
        self._unparsed_bytes = self._head_bytes = self._fields = 0
        self._problem: RequestError | None = None

        # Timers: when the request that is arriving began to, and when the connection became idle.
        self._receiving_since_s: float | None = None
        self._receive_timer: asyncio.TimerHandle | None = None
        #: Set while the client does not keep up with its answers.
        self._read_timer: asyncio.TimerHandle | None = None
        self._last_answer_s = 0.0
        #: Whether what still comes is thrown away, and whether the last answer was written, too.
        self._rejected = self._lingering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Expect a first request as soon as a further one."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._became_idle()
        if self.hosted is not None:
            self._app, peer = self.hosted.app, peer_of(transport)
            if self._app.haproxies.connected(peer):
                self._haproxy = peer

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and the app."""
        super().connection_lost(exc)
        self._disconnect()
        self._unset_keepalive_if_required()
        if self._haproxy is not None and self._app is not None:
            self._app.haproxies.left(self._haproxy)
        self._was_read()
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    # Parsing

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless it has got nowhere with the bytes that it was fed before.

        It keeps an unfinished field or trailer to itself.
        """
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self.reject(_head_too_large())
            return
        self._progress = False
        super().data_received(data)
        self._unparsed_bytes = 0 if self._progress else self._unparsed_bytes + len(data)
        if self.timeout_keep_alive_task is None and not self._is_busy:
            # It read nothing but empty lines.
            self.timeout_keep_alive_handler()

    def on_message_begin(self) -> None:
        """Start to count the head, and note when it could have been read."""
        self._in_head, self._in_body, self._progress = True, False, True
        self._head_bytes = self._fields = 0
        self._receiving()
        super().on_message_begin()
        if self.hosted is not None:
            arrival_s = self.hosted.app.service.event_loop_meter.request_read(time.monotonic())
            self.scope[ARRIVAL] = arrival_s  # type: ignore[literal-required]

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._check_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Append a header field, or one of the trailer."""
        self._fields += 1
        self._check_head(len(name) + len(value))
        super().on_header(name, value)

    def _check_head(self, more: int) -> None:
        self._progress = True
        self._head_bytes += more
        if self._head_bytes > MAX_HEAD_BYTES or self._fields > MAX_FIELDS:
            self._problem = _head_too_large()
            raise self._problem  # the parser stops, and uvicorn calls `send_400_response`

    def on_headers_complete(self) -> None:
        """Start the request, unless the parser would take its body for the next one."""
        if self.parser.should_upgrade() and _has_body(dict(self.headers)):
            self._problem = BadRequestError("a request with a body must not ask for an upgrade")
            raise self._problem
        self._in_head, self._in_body, self._progress = False, True, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        if self.hosted is not None:
            self.hosted.app.service.event_loop_meter.part_read(time.monotonic())
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._progress = False, True
        self._receiving_since_s = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Record when the connection became idle."""
        self._last_answer_s = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser does not accept, and close the connection."""
        problem, self._problem = self._problem, None
        self.reject(problem or BadRequestError("the request is not valid HTTP/1.1"))

    @property
    def _is_busy(self) -> bool:
        """Whether a request is being read or answered."""
        return (
            self._in_head
            or self._in_body
            or (self.cycle is not None and not self.cycle.response_complete)
        )

    def reject(self, error: RequestError) -> None:
        """Answer with an error unless an answer has begun, and close the connection.

        It is closed once the client has closed it, or soon: closing it while the client still sends
        would take the answer from it.
        """
        self._receiving_since_s = None
        if self._rejected or self.transport.is_closing():
            return
        self._rejected = True
        before = None if self._in_body else self.cycle
        if self._in_body and self.pipeline:  # it waits until those before it are answered
            self.pipeline.popleft()
            before = self.pipeline[0][0] if self.pipeline else self._answering
        if before is not None and not before.response_started:
            before.keep_alive = False  # the requests before this one are answered, and no more
            return
        cycle = self._answering
        # A request may have been answered before its end.
        is_before_this = cycle is not None and cycle.response_complete and not self._in_body
        if cycle is None or is_before_this or not cycle.response_started:
            if self.hosted is not None:
                self.hosted.app.service.answers[error.status, error.reason or ""] += 1
            end = (b"connection", b"close")
            headers = [*self.server_state.default_headers, end]
            self.transport.write(b"".join(to_http(error_answer(error), headers)))
        self._disconnect()
        self.transport.write_eof()
        self._lingering = True
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self._receive_timer = self.loop.call_later(LINGER_S, self._check_receiving)

    def _disconnect(self) -> None:
        """Signal to the app that the client has left; uvicorn does so for the last request only."""
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    # Timers: for a request to arrive, for answers to be read, and for the next request

    @property
    def _receive_timeout_s(self) -> float:
        hosted = self.hosted
        return (Service if hosted is None else hosted.app.service).receive_timeout_s

    def _receiving(self) -> None:
        """Record that a part of a request has been read."""
        if self._receiving_since_s is None:
            self._receiving_since_s = self.loop.time()
            if self._receive_timer is None:
                self._receive_timer = self.loop.call_later(
                    self._receive_timeout_s, self._check_receiving
                )

    def _check_receiving(self) -> None:
        self._receive_timer = None
        if self._lingering:
            self.transport.abort()
            return
        since_s = self._receiving_since_s
        if since_s is None or self.transport.is_closing():
            return
        left_s = since_s + self._receive_timeout_s - self.loop.time()
        if left_s > 0:
            self._receive_timer = self.loop.call_later(left_s, self._check_receiving)
        else:
            self.reject(
                RequestTimeoutError(f"the request must arrive within {self._receive_timeout_s:g} s")
            )

    def pause_writing(self) -> None:
        """Wait for the client to read its answers, within limits."""
        super().pause_writing()
        if self._app is not None:
            limit_bytes = self._app.service.bodies.limit_bytes
            self._app.unread_answers.add(self.transport, limit_bytes)
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """Go on once the client has read enough of its answers."""
        super().resume_writing()
        self._was_read()

    def _wait_for_reader(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        self._read_timer = self.loop.call_later(READ_TIMEOUT_S, self._check_reader, unread_bytes)

    def _check_reader(self, unread_before: int) -> None:
        """Break the connection off if the client has read nothing meanwhile."""
        if self.transport.get_write_buffer_size() < unread_before:
            self._wait_for_reader()
        else:
            self.transport.abort()

    def _was_read(self) -> None:
        if self._app is not None:
            self._app.unread_answers.remove(self.transport)
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _became_idle(self) -> None:
        self._last_answer_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._expect_request(self.timeout_keep_alive)

    def _expect_request(self, within_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            within_s, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it was idle for the keep-alive timeout."""
        self.timeout_keep_alive_task = None
        if self._is_busy:
            return  # its answer, or the end of its body, sets the timer again
        left_s = self._last_answer_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._expect_request(left_s)
        else:
            if self._read_timer is None and self.transport.get_write_buffer_size():
                self._wait_for_reader()  # closing waits until all is read
            super().timeout_keep_alive_handler()


def _has_body(fields: Mapping[bytes, bytes]) -> bool:
    return b"transfer-encoding" in fields or fields.get(CONTENT_LENGTH, b"0") != b"0"


def _head_too_large() -> HeadTooLargeError:
    return HeadTooLargeError(
        f"the head of a request may have at most {MAX_HEAD_BYTES} bytes and {MAX_FIELDS} fields"
    )
