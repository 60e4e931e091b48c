"""A rate-limited log of refused and failed requests, one JSON object per line.

A service under overload refuses thousands of requests per second, and logging them would cost more
than the requests do. The lines of each status are rate-limited; the next line counts the omitted
ones.
"""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable

import orjson

from deployments.errors import RequestError
from deployments.observability.request_info import RequestInfo
from deployments.token_bucket import TokenBucket

logger = logging.getLogger("sojourn.requests")

#: Sustained lines per second and status, and their burst.
LINES_PER_S = 1.0
BURST_LINES = 10.0
#: The longest `traceparent` in a line, in characters.
_LONGEST_PARENT = 128


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
        self._rates = defaultdict[int, TokenBucket](lambda: TokenBucket(LINES_PER_S, BURST_LINES))
        self._left_out: Counter[int] = Counter()

    def failed(
        self, error: RequestError, info: RequestInfo, arrival_s: float, *, likewise: int = 0
    ) -> None:
        """Log a request, unless there were too many of its status.

        As many requests `likewise` have no line of their own.
        """
        status, now_s = error.status, self._clock()
        if not self._rates[status].take(now_s):
            self._left_out[status] += 1 + likewise
            return
        line: dict[str, object] = {
            "event": "request_failed",
            "model": info.model or self._model,
            "status": status,
            "error": str(error),
            "request_id": info.request_id.decode("latin-1"),
            "waited_ms": round(1e3 * (now_s - arrival_s), 3),
        }
        if info.token is not None:
            line["token"] = info.token
        if info.traceparent is not None:
            line["traceparent"] = info.traceparent[:_LONGEST_PARENT].decode("latin-1")
        if self._left_out[status]:
            line["left_out"] = self._left_out[status]
        self._left_out[status] = likewise
        level = logging.ERROR if status == 500 else logging.INFO
        logger.log(level, "%s", orjson.dumps(line).decode())
