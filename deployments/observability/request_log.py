"""A rate-limited log of refused and failed requests, one JSON object per line.

A service under overload refuses thousands of requests per second, and logging them would cost more
than the requests do. The lines of each status are rate-limited; the next line counts the omitted
ones.
"""

import logging
import time
from collections.abc import Callable

import orjson

from deployments.token_bucket import TokenBucket

logger = logging.getLogger("sojourn.requests")

#: Sustained lines per second and status, and their burst.
LINES_PER_S = 1.0
BURST_LINES = 10.0
#: Maximum length of an id in a line, in characters.
_LONGEST_ID = 128


class _Status:
    """The rate limit of one HTTP status, and the number of omitted lines."""

    __slots__ = ("bucket", "left_out")

    def __init__(self) -> None:
        self.bucket = TokenBucket(LINES_PER_S, BURST_LINES)
        self.left_out = 0


class RequestLog:
    """Write a line for each request that was not answered with outputs.

    Each line is a JSON object: ``status``, ``error`` (what the client was told), ``request_id``,
    ``waited_ms`` (from its arrival, by `clock`), ``token`` (its name) and ``traceparent`` if it has
    one, and ``left_out``: how many requests of this status had no line since the last one.
    """

    def __init__(
        self,
        model: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._clock = clock
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

        As many requests `likewise` have no line of their own.
        """
        kept = self._statuses.get(status)
        if kept is None:
            kept = self._statuses[status] = _Status()
        now_s = self._clock()
        if not kept.bucket.take(now_s):
            kept.left_out += 1 + likewise
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
        kept.left_out = likewise
        level = logging.ERROR if status == 500 else logging.INFO
        logger.log(level, "%s", orjson.dumps(line).decode())
