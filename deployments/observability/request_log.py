"""A rate-limited log of refused and failed requests, one JSON object per line.

A service under overload refuses thousands of requests per second, and logging them would cost more
than the requests do. The lines of each status are rate-limited; the next line counts the omitted
ones.
"""

import asyncio
import logging
import time
from collections.abc import Callable

import orjson

from deployments.access.token_bucket import TokenBucket

logger = logging.getLogger("sojourn.requests")

#: Sustained lines per second and status, and their burst.
LINES_PER_S = 1.0
BURST_LINES = 10.0
#: Delay after the first omitted line until one line counts all of them.
FLUSH_AFTER_S = 10.0
#: Maximum length of an id in a line, in characters.
_LONGEST_ID = 128


def _call_later(delay_s: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, call)


class _Status:
    """The rate limit of one HTTP status, and the number of omitted lines."""

    __slots__ = ("bucket", "left_out")

    def __init__(self) -> None:
        self.bucket = TokenBucket(LINES_PER_S, BURST_LINES)
        self.left_out = 0


class RequestLog:
    """Write a line for each request that was not answered with outputs.

    Each line is a JSON object: ``status``, ``error`` (what the client was told), ``request_id``,
    ``waited_ms`` (from its arrival), ``token`` (its name) and ``traceparent`` if it has one, and
    ``left_out``: how many requests of this status had no line since the last one.

    Parameters
    ----------
    model : str
        Name of the model, in every line.
    clock : callable
        Time in seconds, of the arrivals as well.
    call_later : callable
        Calls a function after a delay in seconds; by default, the running event loop does.
    """

    def __init__(
        self,
        model: str,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], None] = _call_later,
    ) -> None:
        self._model = model
        self._clock = clock
        self._call_later = call_later
        self._flush_scheduled = False
        self._statuses: dict[int, _Status] = {}

    def failed(
        self,
        status: int,
        error: str,
        request_id: bytes,
        arrival_s: float,
        *,
        token: str | None = None,
        traceparent: bytes | None = None,
        likewise: int = 0,
    ) -> None:
        """Log a request, unless there were too many of its status.

        Parameters
        ----------
        status : int
            HTTP status of its answer.
        error : str
            What the answer says.
        request_id : bytes
        arrival_s : float
            When it arrived, by the log's clock.
        token : str, optional
            Name of its token.
        traceparent : bytes, optional
            Its header of that name.
        likewise : int
            Further requests of this status, which have no line of their own.
        """
        kept = self._statuses.get(status)
        if kept is None:
            kept = self._statuses[status] = _Status()
        now_s = self._clock()
        if not kept.bucket.take(now_s):
            self._leave_out(kept, 1 + likewise)
            return
        line: dict[str, object] = {
            "event": "request_failed",
            "model": self._model,
            "status": status,
            "error": error,
            "request_id": request_id[:_LONGEST_ID].decode("latin-1"),
            "waited_ms": round(1e3 * (now_s - arrival_s), 3),
        }
        if token is not None:
            line["token"] = token
        if traceparent is not None:
            line["traceparent"] = traceparent[:_LONGEST_ID].decode("latin-1")
        if kept.left_out:
            line["left_out"] = kept.left_out
            kept.left_out = 0
        self._write(logging.ERROR if status == 500 else logging.INFO, line)
        if likewise:
            self._leave_out(kept, likewise)

    def _leave_out(self, kept: _Status, requests: int) -> None:
        kept.left_out += requests
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._call_later(FLUSH_AFTER_S, self._flush)

    def _flush(self) -> None:
        """Log the number of omitted lines of each status without a later line."""
        self._flush_scheduled = False
        for status, kept in self._statuses.items():
            if kept.left_out:
                line = {
                    "event": "requests_failed",
                    "model": self._model,
                    "status": status,
                    "left_out": kept.left_out,
                }
                kept.left_out = 0
                self._write(logging.INFO, line)

    def _write(self, level: int, line: dict[str, object]) -> None:
        logger.log(level, "%s", orjson.dumps(line).decode())
