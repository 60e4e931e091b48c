"""The replica's HTTP protocol: uvicorn's, with limits and a fast path.

uvicorn makes a scope, a task and an event for each request, and passes events between them. An
ordinary inference request (`deployments.http.request_head`) needs none of that: it is parsed where
its last bytes are read, and a callback of its batch writes the answer. Everything else, and
whatever follows it on the connection until it is answered, goes to uvicorn's parser and so to the
ASGI app. A connection has one request at a time on the fast path; pipelined requests wait until
those before them are answered, and reading pauses meanwhile.
"""

import asyncio
import time
from functools import partial
from typing import Any

from deployments.access.control import DENIALS, INFERENCE
from deployments.batcher.queued_request import Cancellable, Outcome
from deployments.errors import BusyError, RequestError
from deployments.haproxy.refusals import LIMIT_HEADER
from deployments.http.answers import Answer, compressed, pays
from deployments.http.hosted_app import HostedApp
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.limited_protocol import LimitedProtocol
from deployments.http.request_body import SMALL_BODY_BYTES, Reservation
from deployments.http.request_head import END_OF_HEAD, REQUEST_ID, RequestHead
from deployments.http.service import Service
from deployments.http.signature import MAX_JSON_BYTES, claimed_rows
from deployments.observability.request_info import RequestInfo
from policy.batcher.requests import Refusal

_ID_LINE = REQUEST_ID + b": "
_LIMIT_LINE = b"\r\n" + LIMIT_HEADER + b": "


class InferenceProtocol(LimitedProtocol):
    """uvicorn's HTTP protocol with limits, and a fast path to the hosted app, if there is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: The head of the request on the fast path, until it is answered.
        self._head: RequestHead | None = None
        self._info = RequestInfo(b"")
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

    # Connection

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the client's request, and stop the timers."""
        super().connection_lost(exc)
        self._release()
        self._head, self._held, self._missing = None, b"", 0
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def shutdown(self) -> None:
        """Close the connection, after the answer to the request that was accepted."""
        if self._head is None:
            super().shutdown()
        else:
            self._stopping = True

    @property
    def _is_busy(self) -> bool:
        return self._head is not None or self._missing > 0 or super()._is_busy

    def reject(self, error: RequestError) -> None:
        """Answer with an error unless an answer has begun, and close the connection."""
        if self._missing and self._head is None:
            self.transport.close()  # it was rejected before all of it was read
            return
        self._head = None
        self._release()
        super().reject(error)

    # Reading

    def data_received(self, data: bytes) -> None:
        """Read on the fast path if the request is ordinary, else with uvicorn's parser."""
        if self._rejected:
            return
        if self._missing:
            self._read_body(data)
        elif self._head is not None or self._held:
            self._hold(data)
        elif not self._read_ordinary(data):
            super().data_received(data)

    def _read_ordinary(self, data: bytes) -> bool:
        """Read an ordinary request from its start; return False if this is none."""
        hosted = self.hosted
        if (
            hosted is None
            or self._in_head
            or self._in_body
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
        self._info = RequestInfo(request_id or hosted.app.request_ids.make(), traceparent)
        self._last_read_s = now_s = time.monotonic()
        self._arrival_s = service.event_loop_meter.request_read(now_s)
        start = end + len(END_OF_HEAD)
        stop = start + head.body_length
        admitted = self._admit(hosted, head, data, start) and self._has_room(
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
        if not self._skipping:
            body = b"".join(self._chunks)
            self._chunks.clear()
            if rest:
                self._hold(rest)
            self._submit(body)
            return
        self._skipping = False
        if self._head is None:
            self._became_idle()
            if rest:
                self.data_received(rest)
        elif rest:  # the rejection is not written yet
            self._hold(rest)

    def _hold(self, data: bytes) -> None:
        """Keep pipelined requests until the one before them is answered."""
        self._held += data
        self.flow.pause_reading()

    def _go_on(self) -> None:
        held, self._held = self._held, b""
        self.flow.resume_reading()
        self.data_received(held)

    def resume_writing(self) -> None:
        """Go on with held requests once the client has read enough of its answers."""
        super().resume_writing()
        if self._held and self._head is None:
            self._go_on()

    # Admission

    def _admit(self, hosted: HostedApp, head: RequestHead, data: bytes, start: int) -> bool:
        """Return whether the request is admitted, by its head alone; if not, reject it."""
        service, info, now_s = hosted.app.service, self._info, self._last_read_s
        try:
            access = service.access
            info.token = access.admit(
                head.authorization, INFERENCE, now_s, is_foreign=head.is_foreign
            )
            access.check_priority(info.token, head.priority)
            refusal = service.admit(self._arrival_s, now_s, head.priority)
        except Exception as error:
            if isinstance(error, DENIALS):
                service.event_loop_meter.requests_refused(1)  # at a refusal's cost, not an answer's
            self._fail(error)
            return False
        if refusal is None:
            if head.body_length > SMALL_BODY_BYTES:
                self._reservation = Reservation(service.bodies, info.token)
            return True
        rows = claimed_rows(data, service.signature.max_rows, start)
        hosted.rejections.add(refusal, self._arrival_s, rows, info)
        self._write_soon(
            *hosted.rejection(
                refusal, self.server_state.default_headers, only_replica=head.only_replica
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
            service, now_s = self.hosted.app.service, time.monotonic()
            service.count_rejected(Refusal.FULL, [(self._arrival_s, 1)], now_s)
            self._fail(error)
            return False
        return True

    def _submit(self, body: bytes) -> None:
        """Parse the request, and queue it for the batcher."""
        hosted, head = self.hosted, self._head
        assert hosted is not None
        assert head is not None
        service, info, arrival_s = hosted.app.service, self._info, self._arrival_s
        try:
            request = service.parse(
                body, head.header_length, head.timeout_ms, head.priority, info, arrival_s
            )
            # Another version of the service may take over meanwhile.
            on_done = partial(self._answered, request, service)
            self._call = service.infer_nowait(request, arrival_s, on_done, info)
        except Exception as error:
            self._fail(error)

    # Answers

    def _fail(self, error: Exception) -> None:
        self._write_soon(*self._encoded(self._failure(error)))

    def _failure(self, error: Exception) -> Answer:
        """Count and log a request that failed, and return its answer."""
        assert self.hosted is not None
        outcomes = self.hosted.app.outcomes
        if not isinstance(error, DENIALS):  # it never was the model's
            outcomes.totals.failed(self._arrival_s)
        answer = outcomes.failure(error, self._info, self._arrival_s)
        self._info.end_trace(answer[0])
        return answer

    def _answered(self, request: InferenceRequest, service: Service, outcome: Outcome) -> None:
        assert self.hosted is not None
        self._call = None
        try:
            if isinstance(outcome, RequestError):
                raise outcome
            answer = self.hosted.app.outcomes.success(request, outcome, service, self._arrival_s)
            self._info.end_trace(answer[0])
        except Exception as error:
            answer = self._failure(error)
        if self._head is not None and self._head.gzip and pays(answer):
            compressing = self.loop.run_in_executor(None, compressed, answer)
            compressing.add_done_callback(self._compressed)
        else:
            self._write(*self._encoded(answer))

    def _compressed(self, compressing: asyncio.Future[Answer]) -> None:
        if not compressing.cancelled():
            self._write(*self._encoded(compressing.result()))

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
        self.loop.call_soon(self._write, start, end)

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
        start = b"%b%b%b%b%d\r\n" % (start, _ID_LINE, self._info.request_id, _LIMIT_LINE, limit)
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
        """Release what was read of the body, and its part of the budget."""
        self._chunks.clear()
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
