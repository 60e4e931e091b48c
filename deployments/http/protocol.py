"""The replica's HTTP protocol: uvicorn's, with a short way for ordinary inference requests.

uvicorn makes a scope, a task and an event for each request, and passes events between them. An
ordinary inference request (`deployments.http.request_head`) needs none of that: it is parsed where
its last bytes are read, and a callback of its batch writes the answer. Everything else, and
whatever follows it on the connection until it is answered, goes to uvicorn's own protocol and so to
the ASGI app.

Each connection has one request at a time in the batcher (`deployments.http.answering_protocol`).
"""

import time
from collections.abc import Callable
from typing import Any

from deployments.access.control import INFERENCE
from deployments.batcher.submission import Cancellable, Outcome
from deployments.errors import RequestError
from deployments.haproxy.refusals import host_of
from deployments.http.answering_protocol import AnsweringProtocol
from deployments.http.hosted_app import HostedApp
from deployments.http.inference_protocol import InferenceRequest, parse_request
from deployments.http.json_guard import MAX_JSON_BYTES, claimed_rows
from deployments.http.request_head import END_OF_HEAD, RequestHead
from deployments.http.service_interface import Service
from deployments.observability.request_info import RequestInfo
from policy.batcher.requests import Refusal

__all__ = ["HostedApp", "InferenceProtocol"]


class InferenceProtocol(AnsweringProtocol):
    """uvicorn's HTTP protocol, with a short way to the hosted app."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._info = RequestInfo(b"")
        self._request: InferenceRequest | None = None
        #: The service that computes it; another version may take over meanwhile.
        self._service: Service | None = None
        self._call: Cancellable | None = None
        #: When it could first have been read, less the time for which its sender paused.
        self._arrival_s = self._last_read_s = 0.0
        #: What was read of an incomplete body, and how many bytes are missing.
        self._chunks: list[bytes] = []
        self._missing = 0
        #: Whether the request was refused before all of its body was read.
        self._skipping = False
        # uvicorn's access log and its limit of connections belong to its own way.
        self._short_way = not self.access_log and self.limit_concurrency is None

    @property
    def _is_busy(self) -> bool:
        return self._head is not None or self._missing > 0

    def count_answer(self, status: int) -> None:
        """Count an answer that the app does not give."""
        if self.hosted is not None:
            self.hosted.app.service.answers[status] += 1

    def reject(self, error: RequestError) -> None:
        """Answer with an error, unless the request has its answer, and close the connection."""
        if self._missing and self._head is None:
            self.transport.close()  # it was refused before all of it was read
        else:
            self._head = None
            self._release()
            self._chunks.clear()
            super().reject(error)

    def data_received(self, data: bytes) -> None:
        """Take what was read."""
        if self._lingering:
            return
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
            or self._in_head
            or self._in_body
            or hosted.loop is not self.loop
            or not self._short_way
            or (self.cycle is not None and not self.cycle.response_complete)
        ):
            super().data_received(data)
            return
        end = data.find(END_OF_HEAD)
        head, request_id, traceparent, sent_us = (
            hosted.heads.find(data, end) if end >= 0 else (None, None, None, 0)
        )
        service = hosted.app.service
        start = end + len(END_OF_HEAD)
        if (
            head is None
            or head.body_length > service.max_body_bytes
            or (head.header_length is None and head.body_length > MAX_JSON_BYTES)
        ):
            super().data_received(data)
            return
        if self.flow.write_paused:
            self._hold(data)
            return
        self._head = head
        self._request_id = request_id or hosted.app.request_ids.make()
        self._last_read_s = now_s = time.monotonic()
        readable_s = service.event_loop_meter.request_read(now_s)
        self._arrival_s = self._readable_since_s(now_s, readable_s, sent_us)
        stop = start + head.body_length
        hosted.app.balancers.saw(host_of(self.client), now_s)
        let_in = self._let_in(hosted, head, traceparent, data, start)
        if len(data) < stop:
            self._missing = stop - len(data)
            self.receiving()
            if let_in:
                self._chunks.append(data[start:])
            else:
                self._skipping = True
            return
        if len(data) > stop:
            self._hold(data[stop:])
        if let_in:
            self._handle(data[start:stop])

    def _let_in(
        self,
        hosted: HostedApp,
        head: RequestHead,
        traceparent: bytes | None,
        data: bytes,
        start: int,
    ) -> bool:
        """Return whether there is room for the request, by its head alone; if not, refuse it."""
        service, now_s = hosted.app.service, self._last_read_s
        token = None
        try:
            token = service.access.admit(head.authorization, INFERENCE, now_s)
            refusal = service.turns_away(self._arrival_s, now_s, head.priority)
            if refusal is None:
                self._info = RequestInfo(self._request_id, traceparent, token)
                # Strangers, and whom there is no room for, take nothing of the budget for bodies.
                if service.bodies.take(head.body_length):
                    self._reserved = head.body_length
                    return True
                refusal = Refusal.FULL
        except Exception as error:
            self._info = RequestInfo(self._request_id, traceparent, token)
            self._refuse(error)
            return False
        rows = claimed_rows(data, service.signature.max_rows, start)
        self._turn_away(refusal, rows, lambda: RequestInfo(self._request_id, traceparent, token))
        return False

    def _turn_away(self, refusal: Refusal, rows: int, info: Callable[[], RequestInfo]) -> None:
        """Answer a request that was refused without parsing it."""
        hosted, head, too_late = self.hosted, self._head, refusal is Refusal.EXPIRED
        assert hosted is not None
        assert head is not None
        hosted.turned_away.add(self._arrival_s, rows, info, too_late=too_late)
        start, end = hosted.refusal(
            self.server_state.default_headers,
            too_late=too_late,
            only_replica=head.only_replica,
        )
        self._write_soon(start, end)

    def _write_soon(self, start: bytes, end: bytes) -> None:
        """Write an answer at the end of the loop's iteration.

        Its client could otherwise send the next request while the poll goes on, which returns only
        when nothing more is to be read.
        """
        self.loop.call_soon(lambda: self.write(start, end))

    def _read_body(self, data: bytes) -> None:
        assert self.hosted is not None
        now_s = time.monotonic()
        meter = self.hosted.app.service.event_loop_meter
        since_s = self._readable_since_s(now_s, meter.part_read(now_s))
        # A slow sender's time is not the replica's: only what could have been read sooner counts.
        self._arrival_s += max(0.0, since_s - self._last_read_s)
        self._last_read_s = now_s
        rest = data[self._missing :]
        if not self._skipping:
            self._chunks.append(data[: self._missing])
        self._missing -= len(data) - len(rest)
        if self._missing:
            return
        self.received()
        if self._skipping:
            self._skip_ended(rest)
            return
        body = b"".join(self._chunks)
        self._chunks.clear()
        if rest:
            self._hold(rest)
        if self._check_room(body):
            self._handle(body)

    def _skip_ended(self, rest: bytes) -> None:
        """Go on after the body of a request that was refused before all of it was read."""
        self._skipping = False
        if self._head is not None:
            if rest:
                self._hold(rest)
            return
        self._last_answer_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._expect_request(self.timeout_keep_alive)
        if rest:
            self._read(rest)

    def _handle(self, body: bytes) -> None:
        """Answer the request, or queue it for the batcher."""
        hosted, head = self.hosted, self._head
        assert hosted is not None
        assert head is not None
        signature = hosted.app.service.signature
        try:
            self._submit(
                parse_request(body, head.header_length, signature, head.timeout_ms, head.priority)
            )
        except Exception as error:
            self._refuse(error)

    def _submit(self, request: InferenceRequest) -> None:
        """Queue a request for the batcher."""
        assert self.hosted is not None
        service, info = self.hosted.app.service, self._info
        self._request, self._service = request, service
        if service.tracing.on:
            info.trace = service.tracing.begin(info.traceparent, info.request_id, self._arrival_s)
        self._call = service.infer_nowait(request, self._arrival_s, self._answered, info)

    def _check_room(self, body: bytes) -> bool:
        """Return whether there still is room after the body was read in parts; if not, refuse."""
        assert self.hosted is not None
        assert self._head is not None
        service = self.hosted.app.service
        try:
            refusal = service.turns_away(self._arrival_s, self._last_read_s, self._head.priority)
        except Exception as error:
            self._refuse(error)
            return False
        if refusal is None:
            return True
        rows = claimed_rows(body, service.signature.max_rows)
        self._turn_away(refusal, rows, lambda: self._info)
        return False

    def _refuse(self, error: Exception) -> None:
        """Answer with an error."""
        assert self.hosted is not None
        self.hosted.outcomes.totals.failed(self._arrival_s)
        answer = self.hosted.outcomes.failure(error, self._info, self._arrival_s)
        self._end_trace(answer[0])
        self._write_soon(*self._encoded(answer))

    def _answered(self, outcome: Outcome) -> None:
        """Write the outcome of the request."""
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
        self._send(answer)

    def _end_trace(self, status: int) -> None:
        """Make the spans of the request, if it is traced."""
        info = self._info
        if info.trace is not None:
            assert self._service is not None
            assert self._request is not None
            self._service.tracing.end(info.trace, status, self._request.rows, info.token)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the client's request."""
        super().connection_lost(exc)
        self._missing = 0
        self._chunks.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None
