"""uvicorn's HTTP protocol with limits for clients that are slow, greedy or not HTTP.

uvicorn waits for the rest of a request for ever, keeps heads of any size, and answers what is not
HTTP in plain text. Each connection here has one timer at most, and none while whole requests come
in one piece.
"""

import asyncio
from typing import Any, cast

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from deployments.errors import (
    BadRequestError,
    HeadTooLargeError,
    RequestError,
    RequestTimeoutError,
)

#: The largest head of a request, and the most header fields.
MAX_HEAD_BYTES = 64 << 10
MAX_FIELDS = 256
#: How long a request may take to arrive, from its first byte to its last, unless a subclass says.
RECEIVE_TIMEOUT_S = 30.0
#: How long a client may go on sending after the answer with which its connection ends.
LINGER_S = 1.0


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits, and with errors as JSON."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: When the request that is arriving began to; None if there is none.
        self._receiving_since_s: float | None = None
        self._receive_timer: asyncio.TimerHandle | None = None
        #: Where uvicorn's parser is in a message.
        self._in_head = self._in_body = False
        self._head_bytes = self._unfinished_bytes = self._fields = 0
        self._problem: RequestError | None = None
        #: Whether the last answer was written, and what still comes is thrown away.
        self._lingering = False

    @property
    def receive_timeout_s(self) -> float:
        """The longest that a request may take to arrive, in seconds."""
        return RECEIVE_TIMEOUT_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Expect a first request as soon as a further one."""
        super().connection_made(cast(asyncio.Transport, transport))
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def receiving(self) -> None:
        """Note that a part of a request has been read."""
        if self._receiving_since_s is None:
            self._receiving_since_s = self.loop.time()
            if self._receive_timer is None:
                self._receive_timer = self.loop.call_later(
                    self.receive_timeout_s, self._check_receiving
                )

    def received(self) -> None:
        """Note that the rest of the request has been read."""
        self._receiving_since_s = None

    def _check_receiving(self) -> None:
        self._receive_timer = None
        if self._lingering:
            self.transport.close()
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

    def data_received(self, data: bytes) -> None:
        """Feed uvicorn's parser, unless the head that it is reading has become too large."""
        if self._lingering:
            return
        in_head = self._in_head
        # The parser keeps an unfinished field to itself, so what it was given is counted as well.
        if in_head and self._unfinished_bytes > MAX_HEAD_BYTES:
            self.reject(_head_too_large())
            return
        super().data_received(data)
        if in_head and self._in_head:
            self._unfinished_bytes += len(data)

    def on_message_begin(self) -> None:
        """Start to count the head."""
        self._in_head, self._in_body = True, False
        self._head_bytes = self._unfinished_bytes = self._fields = 0
        self.receiving()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        super().on_url(url)
        self._check_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field."""
        self._fields += 1
        self._check_head(len(name) + len(value))
        super().on_header(name, value)

    def _check_head(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > MAX_HEAD_BYTES or self._fields > MAX_FIELDS:
            self._problem = _head_too_large()
            raise self._problem  # the parser stops, and uvicorn calls `send_400_response`

    def on_headers_complete(self) -> None:
        """Go on with the body."""
        self._in_head, self._in_body = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the request is there."""
        self._in_body = False
        self.received()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser does not accept, and close the connection."""
        problem, self._problem = self._problem, None
        self.reject(problem or BadRequestError("the request is not valid HTTP/1.1"))

    def reject(self, error: RequestError) -> None:
        """Answer with an error unless an answer has begun, and close the connection.

        It is closed once the client has closed it, or soon: closing it while the client still sends
        would take the answer from it.
        """
        self.received()
        if self._lingering or self.transport.is_closing():
            return
        cycle = self.cycle
        # A request may have been answered before its end.
        is_before_this = cycle is not None and cycle.response_complete and not self._in_body
        if cycle is None or is_before_this or not cycle.response_started:
            self.count_answer(error.status)
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

    def count_answer(self, status: int) -> None:
        """Count an answer that no app gives."""


def _head_too_large() -> HeadTooLargeError:
    return HeadTooLargeError(
        f"the head of a request may have at most {MAX_HEAD_BYTES} bytes and {MAX_FIELDS} fields"
    )
