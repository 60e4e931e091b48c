"""The answers of a connection: one request at a time, and what was read after it waits.

Pipelined requests wait until those before them are answered, and reading pauses meanwhile.
"""

import asyncio
from typing import Any

from deployments.http.answers import Answer
from deployments.http.compression import compressed, pays
from deployments.http.request import REQUEST_ID
from deployments.http.request_head import RequestHead
from deployments.http.timed_protocol import TimedProtocol

_ID_LINE = REQUEST_ID + b": "


class AnsweringProtocol(TimedProtocol):
    """uvicorn's HTTP protocol, which writes the answers of requests that it did not parse."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: The request on the short way, from its head until it is answered.
        self._head: RequestHead | None = None
        self._request_id = b""
        #: Bytes that the request has taken of the app's budget.
        self._reserved = 0
        #: What was read after an unanswered request.
        self._held = b""
        self._stopping = False

    def _hold(self, data: bytes) -> None:
        """Keep pipelined requests until the one before them is answered."""
        self._held += data
        self.flow.pause_reading()

    def _send(self, answer: Answer) -> None:
        """Write an answer, compressed if the client takes that and it pays."""
        coding = None if self._head is None else self._head.coding
        if coding is not None and pays(answer):
            compressing = self.loop.run_in_executor(None, compressed, answer, coding)
            compressing.add_done_callback(self._compressed)
        else:
            self.write(*self._encoded(answer))

    def _compressed(self, compressing: asyncio.Future[Answer]) -> None:
        """Write an answer that was compressed."""
        if not compressing.cancelled():
            self.write(*self._encoded(compressing.result()))

    def _encoded(self, answer: Answer) -> tuple[bytes, bytes]:
        """Return an answer as bytes."""
        hosted, head, headers = self.hosted, self._head, self.server_state.default_headers
        assert hosted is not None
        only_replica = head is not None and head.only_replica
        return hosted.encode(answer, headers, only_replica=only_replica)

    def _go_on(self) -> None:
        held, self._held = self._held, b""
        self.flow.resume_reading()
        self.data_received(held)

    def write(self, start: bytes, end: bytes) -> None:
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
        start = b"%b%b%b\r\n" % (start, _ID_LINE, self._request_id)
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

    def _release(self) -> None:
        """Return the request's part of the budget."""
        reserved, self._reserved = self._reserved, 0
        if reserved and self.hosted is not None:
            self.hosted.app.service.bodies.release(reserved)

    def resume_writing(self) -> None:
        """Go on with held requests once the client has read enough of its answers."""
        super().resume_writing()
        if self._held and self._head is None:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client's requests."""
        super().connection_lost(exc)
        self._release()
        self._head, self._held = None, b""

    def shutdown(self) -> None:
        """Close the connection, after the answer to the request that was accepted."""
        if self._head is None:
            super().shutdown()
        else:
            self._stopping = True
