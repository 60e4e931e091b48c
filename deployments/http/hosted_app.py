"""An app whose inference requests take the fast path: its prepared answers, and its rejections."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from deployments.batcher.rejections import FULL, TOO_LATE
from deployments.errors import BusyError, DeadlineError, RequestError
from deployments.haproxy.refusals import MAX_BODY_HEADER, RETURN_HEADER, status_on_wire
from deployments.http.answers import JSON, Answer, Outcomes, counted_as, error_answer
from deployments.http.app import InferenceApp
from deployments.http.request_head import HeaderCache, Headers
from deployments.observability.request_info import RequestInfo
from policy.batcher.requests import Refusal

#: The errors of rejected requests, by whether they came too late for any replica.
ERRORS: tuple[RequestError, RequestError] = (BusyError(FULL), DeadlineError(TOO_LATE))
_REASONS = (Refusal.FULL, Refusal.EXPIRED)


class RejectionCounter:
    """Count and log the requests that one iteration of the event loop rejects unparsed.

    Counting and logging each of them would cost as much as all else that a rejection takes.
    """

    def __init__(self, app: InferenceApp, loop: asyncio.AbstractEventLoop) -> None:
        self._app, self._loop = app, loop
        self._scheduled = False
        #: Arrival times and rows, by whether the requests came too late.
        self._requests: tuple[list[tuple[float, int]], ...] = ([], [])
        self._first: list[RequestInfo | None] = [None, None]

    def add(
        self, arrival_s: float, rows: int, info: Callable[[], RequestInfo], *, too_late: bool
    ) -> None:
        """Record a request; its `info` is asked for if a line in the log is to be about it."""
        requests = self._requests[too_late]
        if not requests:
            self._first[too_late] = info()
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._count)
        requests.append((arrival_s, rows))
        # Now, as it is this iteration of the loop that the refusal costs.
        self._app.service.event_loop_meter.request_refused()

    def _count(self) -> None:
        self._scheduled = False
        app, now_s = self._app, time.monotonic()
        for requests, info, error, reason in zip(
            self._requests, self._first, ERRORS, _REASONS, strict=True
        ):
            if not requests:
                continue
            assert info is not None
            arrival_s, count = requests[0][0], len(requests)
            app.service.count_rejected(reason, requests, now_s)
            app.service.answers[error.status, error.reason or ""] += count
            app.outcomes.totals.failed(arrival_s, count)
            app.outcomes.log_failure(error.status, str(error), info, arrival_s, likewise=count - 1)
            requests.clear()


class _Prepared:
    """The parts that answers have in common: header lines, and `rejections`.

    Those are by whether the request came too late, and whether no other replica can be asked.
    """

    def __init__(self, headers: Headers) -> None:
        self._lines = _lines(headers)
        #: How most answers begin.
        self._start_of_json = self._start(200, [JSON])
        self.rejections = [
            [self.encode(error_answer(error), only_replica=only) for only in (False, True)]
            for error in ERRORS
        ]

    def encode(self, answer: Answer, *, only_replica: bool) -> tuple[bytes, bytes]:
        """Return an answer as bytes, before and after the request id."""
        status, body, fields = answer
        if status == 200 and fields == [JSON]:
            start = self._start_of_json
        else:
            start = self._start(status_on_wire(status, only_replica=only_replica), fields)
        return start, b"content-length: %d\r\n\r\n%b" % (len(body), body)

    def _start(self, status: int, fields: Headers) -> bytes:
        return b"".join((_status_line(status), self._lines, _lines(fields)))


@dataclass
class HostedApp:
    """An app whose inference requests take the fast path.

    Only connections on `loop`, that of the app's batcher, take it. `root_path` is the URL prefix.
    """

    app: InferenceApp
    loop: asyncio.AbstractEventLoop
    root_path: str = ""
    heads: HeaderCache = field(init=False)
    outcomes: Outcomes = field(init=False)
    rejections: RejectionCounter = field(init=False)
    _default_headers: Headers | None = field(default=None, init=False)
    _parts: _Prepared = field(init=False)

    def __post_init__(self) -> None:
        path = (self.root_path + self.app.infer_path).encode()
        self.heads = HeaderCache(path)
        self.outcomes = self.app.outcomes
        self.rejections = RejectionCounter(self.app, self.loop)

    def rejection(
        self, headers: Headers, *, too_late: bool, only_replica: bool
    ) -> tuple[bytes, bytes]:
        """Return the answer to rejected requests, before and after the request id."""
        return self._prepared(headers).rejections[too_late][only_replica]

    def encode(
        self, answer: Answer, headers: Headers, *, only_replica: bool
    ) -> tuple[bytes, bytes]:
        """Count an answer, and return it as bytes, before and after the request id."""
        self.app.service.answers[counted_as(answer)] += 1
        return self._prepared(headers).encode(answer, only_replica=only_replica)

    def _prepared(self, headers: Headers) -> _Prepared:
        """Return the parts that answers have in common, made anew once a second."""
        if headers is not self._default_headers:
            of_all = [*headers, (MAX_BODY_HEADER, b"%d" % self.app.max_body_bytes)]
            if (earliest_s := self.app.service.earliest_return_s) is not None:
                of_all.append((RETURN_HEADER, b"%d" % earliest_s))
            self._default_headers, self._parts = headers, _Prepared(of_all)
        return self._parts


def _status_line(status: int) -> bytes:
    return STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status


def _lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
