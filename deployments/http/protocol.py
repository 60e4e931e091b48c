"""The replica's HTTP protocol: uvicorn's, with a fast path and with limits.

uvicorn makes a scope, a task and an event for each request, and passes events between them. An
ordinary inference request (`deployments.http.request_head`) needs none of that: it is parsed where
its last bytes are read, and a callback of its batch writes the answer. Everything else, and
whatever follows it on the connection until it is answered, goes to uvicorn's parser and so to the
ASGI app. A connection has one request at a time on the fast path; pipelined requests wait until
those before them are answered, and reading pauses meanwhile.

uvicorn waits for the rest of a request for ever, keeps heads of any size, and answers what is not
HTTP in plain text. Here heads, trailers and bodies are limited in size and time, on both paths.
"""

import asyncio
import time
from typing import Any, ClassVar, cast

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from deployments.access.control import DENIALS, INFERENCE
from deployments.batcher.queued_request import Cancellable, Outcome
from deployments.errors import (
    BadRequestError,
    BusyError,
    HeadTooLargeError,
    RequestError,
    RequestTimeoutError,
)
from deployments.haproxy.refusals import LIMIT_HEADER
from deployments.haproxy.replica_sockets import peer_of
from deployments.http.answers import Answer, compressed, pays
from deployments.http.app import ARRIVAL, InferenceApp
from deployments.http.hosted_app import HostedApp
from deployments.http.inference_protocol import InferenceRequest, parse_request
from deployments.http.request_body import SMALL_BODY_BYTES, Reservation
from deployments.http.request_head import (
    END_OF_HEAD,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    REQUEST_ID,
    RequestHead,
)
from deployments.http.service import Service
from deployments.http.signature import MAX_JSON_BYTES, claimed_rows
from deployments.observability.request_info import RequestInfo
from policy.batcher.requests import Refusal

__all__ = ["HostedApp", "InferenceProtocol"]

#: How long a request may take to arrive, from its first byte to its last, unless the app says.
RECEIVE_TIMEOUT_S = 30.0
#: How long a client may read nothing of its answer.
READ_TIMEOUT_S = 30.0
#: How long a client may go on sending after the answer with which its connection ends.
LINGER_S = 1.0
_ID_LINE = REQUEST_ID + b": "
_LIMIT_LINE = b"\r\n" + LIMIT_HEADER + b": "


class InferenceProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with a fast path to the hosted app, limits, and errors as JSON.

    Each connection has two timers at most, and sets none while whole requests come in one piece. If
    this process has no `hosted` app, all requests go to uvicorn's parser.
    """

    hosted: ClassVar[HostedApp | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: The app that counts the connection, and the address of the HAProxy if it is one's.
        self._app: InferenceApp | None = None
        self._haproxy: str | None = None

        # The request on the fast path: its head, until it is answered.
        self._head: RequestHead | None = None
        self._request_id = b""
        self._info = RequestInfo(b"")
        self._request: InferenceRequest | None = None
        #: The service that computes it; another version may take over meanwhile.
        self._service: Service | None = None
        self._call: Cancellable | None = None
        #: When it could first have been read, less the time for which its sender paused.
        self._arrival_s = self._last_read_s = 0.0
        #: The part read of an incomplete body, and how many bytes are missing.
        self._chunks: list[bytes] = []
        self._missing = 0
        #: Whether the request was rejected before all of its body was read.
        self._skipping = False
        #: The bytes of the app's budget that its body takes.
        self._reservation: Reservation | None = None
        #: Data read after an unanswered request.
        self._held = b""
        self._stopping = False
        # uvicorn's access log and its limit of connections belong to its own path.
        self._has_fast_path = not self.access_log and self.limit_concurrency is None

        # uvicorn's parser: where it is in a message, and what it was fed since its last callback.
        self._in_head = self._in_body = self._progress = False
        self._unparsed_bytes = self._head_bytes = self._fields = 0
        self._problem: RequestError | None = None

        # Timers: when the request that is arriving began to, and when the connection became idle.
        self._receiving_since_s: float | None = None
        self._receive_timer: asyncio.TimerHandle | None = None
        #: Set while the client does not keep up with its answers.
        self._read_timer: asyncio.TimerHandle | None = None
        self._last_answer_s = 0.0
        #: Whether the last answer was written, and what still comes is thrown away.
        self._lingering = False

    # Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Expect a first request as soon as a further one."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._became_idle()
        hosted, peer = self.hosted, peer_of(transport)
        if hosted is not None and hosted.loop is self.loop:
            self._app = hosted.app
            if self._app.haproxies.connected(peer):
                self._haproxy = peer

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the client's request, and stop the timers."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self._haproxy is not None and self._app is not None:
            self._app.haproxies.left(self._haproxy)
        self._was_read()
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None
        self._release()
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

    def data_received(self, data: bytes) -> None:
        """Read on the fast path if the request is ordinary, else with uvicorn's parser."""
        if self._lingering:
            return
        if self._missing:
            self._read_body(data)
        elif self._head is not None or self._held:
            self._hold(data)
        elif not self._read_ordinary(data):
            self._parse(data)

    # Fast path: reading

    def _read_ordinary(self, data: bytes) -> bool:
        """Read an ordinary request from its start; return False if this is none."""
        hosted = self.hosted
        if (
            hosted is None
            or self._in_head
            or self._in_body
            or hosted.loop is not self.loop
            or not self._has_fast_path
            or (self.cycle is not None and not self.cycle.response_complete)
        ):
            return False
        end = data.find(END_OF_HEAD)
        if end < 0:
            return False
        head, request_id, traceparent = hosted.heads.find(data, end)
        service = hosted.app.service
        if (
            head is None
            or head.body_length > service.max_body_bytes
            or (head.header_length is None and head.body_length > MAX_JSON_BYTES)
        ):
            return False
        if self.flow.write_paused:
            self._hold(data)
            return True
        self._head = head
        self._request_id = request_id or hosted.app.request_ids.make()
        self._last_read_s = now_s = time.monotonic()
        self._arrival_s = service.event_loop_meter.request_read(now_s)
        start = end + len(END_OF_HEAD)
        stop = start + head.body_length
        admitted = self._admit(hosted, head, traceparent, data, start) and self._has_room(
            min(len(data), stop) - start
        )
        if len(data) < stop:
            self._missing = stop - len(data)
            self._receiving()
            self._skipping = not admitted
            if admitted:
                self._chunks.append(data[start:])
            return True
        if len(data) > stop:
            self._hold(data[stop:])
        if admitted:
            self._submit(data[start:stop])
        return True

    def _read_body(self, data: bytes) -> None:
        assert self.hosted is not None
        now_s = time.monotonic()
        meter = self.hosted.app.service.event_loop_meter
        # A slow sender's time is not the replica's: only what could have been read sooner counts.
        self._arrival_s += max(0.0, meter.part_read(now_s) - self._last_read_s)
        self._last_read_s = now_s
        rest = data[self._missing :]
        if not self._skipping:
            self._chunks.append(data[: self._missing])
        self._missing -= len(data) - len(rest)
        if not self._skipping and self._head is not None:
            self._skipping = not self._has_room(self._head.body_length - self._missing)
        if self._missing:
            return
        self._receiving_since_s = None
        if self._skipping:
            self._skipping = False
            if self._head is not None:  # its rejection is not written yet
                if rest:
                    self._hold(rest)
                return
            self._became_idle()
            if rest:
                self.data_received(rest)
            return
        body = b"".join(self._chunks)
        self._chunks.clear()
        if rest:
            self._hold(rest)
        self._submit(body)

    def _hold(self, data: bytes) -> None:
        """Keep pipelined requests until the one before them is answered."""
        self._held += data
        self.flow.pause_reading()

    def _go_on(self) -> None:
        held, self._held = self._held, b""
        self.flow.resume_reading()
        self.data_received(held)

    def pause_writing(self) -> None:
        """Wait for the client to read its answers, within limits."""
        super().pause_writing()
        if self._app is not None:
            self._app.unread_answers.add(self.transport)
        self._wait_for_reader()

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

    def resume_writing(self) -> None:
        """Go on with held requests once the client has read enough of its answers."""
        super().resume_writing()
        self._was_read()
        if self._held and self._head is None:
            self._go_on()

    # Fast path: admission

    def _admit(
        self,
        hosted: HostedApp,
        head: RequestHead,
        traceparent: bytes | None,
        data: bytes,
        start: int,
    ) -> bool:
        """Return whether the request is admitted, by its head alone; if not, reject it."""
        service, now_s = hosted.app.service, self._last_read_s
        token = None
        try:
            access = service.access
            token = access.admit(head.authorization, INFERENCE, now_s, is_foreign=head.is_foreign)
            access.check_priority(token, head.priority)
            refusal = service.admit(self._arrival_s, now_s, head.priority)
        except Exception as error:
            if isinstance(error, DENIALS):
                service.event_loop_meter.request_refused()  # at a refusal's cost, not an answer's
            self._info = RequestInfo(self._request_id, traceparent, token)
            self._fail(error)
            return False
        if refusal is None:
            self._info = RequestInfo(self._request_id, traceparent, token)
            if head.body_length > SMALL_BODY_BYTES:
                self._reservation = Reservation(service.bodies, token)
            return True
        too_late = refusal is Refusal.EXPIRED
        rows = claimed_rows(data, service.signature.max_rows, start)
        hosted.rejections.add(
            *(self._arrival_s, rows, lambda: RequestInfo(self._request_id, traceparent, token)),
            too_late=too_late,
        )
        self._write_soon(
            *hosted.rejection(
                self.server_state.default_headers,
                too_late=too_late,
                only_replica=head.only_replica,
            )
        )
        return False

    def _has_room(self, arrived_bytes: int) -> bool:
        """Return whether there is room for so much of the body; if not, reject the request."""
        try:
            if self._reservation is not None:
                self._reservation.grow_to(arrived_bytes)
        except BusyError as error:
            assert self.hosted is not None
            self._release()
            self._chunks.clear()
            service, now_s = self.hosted.app.service, time.monotonic()
            service.count_rejected(Refusal.FULL, [(self._arrival_s, 1)], now_s)
            service.event_loop_meter.request_refused()
            self._fail(error)
            return False
        return True

    def _submit(self, body: bytes) -> None:
        """Parse the request, and queue it for the batcher."""
        hosted, head = self.hosted, self._head
        assert hosted is not None
        assert head is not None
        service, info = hosted.app.service, self._info
        try:
            request = parse_request(
                body, head.header_length, service.signature, head.timeout_ms, head.priority
            )
            service.access.check_priority(
                info.token, service.signature.priorities.level(request.priority)
            )
            self._request, self._service = request, service
            if service.tracing.on:
                info.trace = service.tracing.begin(
                    info.traceparent, info.request_id, self._arrival_s
                )
            self._call = service.infer_nowait(request, self._arrival_s, self._answered, info)
        except Exception as error:
            self._fail(error)

    # Fast path: answers

    def _fail(self, error: Exception) -> None:
        assert self.hosted is not None
        self.hosted.outcomes.totals.failed(self._arrival_s)
        answer = self.hosted.outcomes.failure(error, self._info, self._arrival_s)
        self._end_trace(answer[0])
        self._write_soon(*self._encoded(answer))

    def _answered(self, outcome: Outcome) -> None:
        assert self.hosted is not None
        assert self._request is not None
        assert self._service is not None
        outcomes = self.hosted.outcomes
        try:
            if isinstance(outcome, RequestError):
                raise outcome
            answer = outcomes.success(self._request, outcome, self._service, self._arrival_s)
        except Exception as error:
            outcomes.totals.failed(self._arrival_s)
            answer = outcomes.failure(error, self._info, self._arrival_s)
        self._end_trace(answer[0])
        self._request = self._call = None
        if self._head is not None and self._head.gzip and pays(answer):
            compressing = self.loop.run_in_executor(None, compressed, answer)
            compressing.add_done_callback(self._compressed)
        else:
            self._write(*self._encoded(answer))

    def _compressed(self, compressing: asyncio.Future[Answer]) -> None:
        if not compressing.cancelled():
            self._write(*self._encoded(compressing.result()))

    def _end_trace(self, status: int) -> None:
        info = self._info
        if info.trace is not None:
            assert self._service is not None
            assert self._request is not None
            self._service.tracing.end(info.trace, status, self._request.rows, info.token)

    def _encoded(self, answer: Answer) -> tuple[bytes, bytes]:
        """Count an answer, and return its bytes before and after the request id."""
        hosted, head, headers = self.hosted, self._head, self.server_state.default_headers
        assert hosted is not None
        only_replica = head is not None and head.only_replica
        return hosted.encode(answer, headers, only_replica=only_replica)

    def _write_soon(self, start: bytes, end: bytes) -> None:
        """Write an answer at the end of the loop's iteration.

        Its client could otherwise send the next request while the poll goes on, which returns only
        when nothing more is to be read.
        """
        self.loop.call_soon(lambda: self._write(start, end))

    def _write(self, start: bytes, end: bytes) -> None:
        """Write an answer, given before and after the request id, and go on with the next request.

        Nothing is written if the client has left.
        """
        if self._head is None:
            return
        self._head = None
        self._release()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        assert self.hosted is not None
        limit = self.hosted.app.limit(len(end))
        start = b"%b%b%b%b%d\r\n" % (start, _ID_LINE, self._request_id, _LIMIT_LINE, limit)
        if self._stopping:
            start += b"connection: close\r\n"
        self.transport.write(start + end)
        if self._stopping:
            self.transport.close()
            return
        self._became_idle()
        if self._held and not self.flow.write_paused:
            self._go_on()

    def _release(self) -> None:
        """Return the request's part of the budget."""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    # uvicorn's parser, with limits

    def _parse(self, data: bytes) -> None:
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
        hosted = self.hosted
        if hosted is not None and hosted.loop is self.loop:
            arrival_s = hosted.app.service.event_loop_meter.request_read(time.monotonic())
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
        self._in_head, self._in_body, self._progress = False, True, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        hosted = self.hosted
        if hosted is not None and hosted.loop is self.loop:
            hosted.app.service.event_loop_meter.part_read(time.monotonic())
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

    # Timers

    @property
    def receive_timeout_s(self) -> float:
        """The longest that a request may take to arrive, in seconds."""
        hosted = self.hosted
        return RECEIVE_TIMEOUT_S if hosted is None else hosted.app.service.receive_timeout_s

    @property
    def _is_busy(self) -> bool:
        """Whether a request is being read or answered."""
        return (
            self._head is not None
            or self._missing > 0
            or self._in_head
            or self._in_body
            or (self.cycle is not None and not self.cycle.response_complete)
        )

    def _receiving(self) -> None:
        """Record that a part of a request has been read."""
        if self._receiving_since_s is None:
            self._receiving_since_s = self.loop.time()
            if self._receive_timer is None:
                self._receive_timer = self.loop.call_later(
                    self.receive_timeout_s, self._check_receiving
                )

    def _check_receiving(self) -> None:
        self._receive_timer = None
        if self._lingering:
            self.transport.abort()
            return
        since_s = self._receiving_since_s
        if since_s is None or self.transport.is_closing():
            return
        left_s = since_s + self.receive_timeout_s - self.loop.time()
        if left_s > 0:
            self._receive_timer = self.loop.call_later(left_s, self._check_receiving)
        else:
            self.reject(
                RequestTimeoutError(f"the request must arrive within {self.receive_timeout_s:g} s")
            )

    def reject(self, error: RequestError) -> None:
        """Answer with an error unless an answer has begun, and close the connection.

        It is closed once the client has closed it, or soon: closing it while the client still sends
        would take the answer from it.
        """
        if self._missing and self._head is None:
            self.transport.close()  # it was rejected before all of it was read
            return
        self._head, self._receiving_since_s = None, None
        self._release()
        self._chunks.clear()
        if self._lingering or self.transport.is_closing():
            return
        cycle = self.cycle
        # A request may have been answered before its end.
        is_before_this = cycle is not None and cycle.response_complete and not self._in_body
        if cycle is None or is_before_this or not cycle.response_started:
            if self.hosted is not None:
                self.hosted.app.service.answers[error.status, error.reason or ""] += 1
            body = orjson.dumps({"error": str(error)})
            lines = [b"%b: %b\r\n" % field for field in self.server_state.default_headers]
            self.transport.write(
                b"".join(
                    (
                        STATUS_LINE[error.status],
                        *lines,
                        b"content-type: application/json\r\n",
                        b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body),
                    )
                )
            )
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # for the app, the client has left
            cycle.message_event.set()
        self.transport.write_eof()
        self._lingering = True
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self._receive_timer = self.loop.call_later(LINGER_S, self._check_receiving)

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


def _head_too_large() -> HeadTooLargeError:
    return HeadTooLargeError(
        f"the head of a request may have at most {MAX_HEAD_BYTES} bytes and {MAX_FIELDS} fields"
    )
