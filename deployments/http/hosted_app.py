"""An app whose inference requests take the short way, and what their answers have in common."""

import asyncio
from dataclasses import dataclass, field

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from deployments.haproxy.refusals import limit_header, status_on_wire
from deployments.http.answers import JSON, Answer, error_answer
from deployments.http.app import InferenceApp
from deployments.http.listeners import AcceptQueue
from deployments.http.outcomes import Outcomes
from deployments.http.request import Headers
from deployments.http.request_head import RequestHeads
from deployments.http.turned_away import ERRORS, TurnedAway


class _Prepared:
    """The parts that answers have in common: header lines, and refusals.

    Parameters
    ----------
    headers : list of (bytes, bytes)
    limit : int or None
        Requests that a HAProxy should send at a time; None: as many as come.

    Attributes
    ----------
    refusals : list of list of (bytes, bytes)
        By whether the request came too late, and whether no other replica can be asked.
    """

    def __init__(self, headers: Headers, limit: int | None) -> None:
        self._lines = _lines([*headers, limit_header(limit)])
        #: How most answers begin.
        self._start_of_json = self._start(200, [JSON])
        self.refusals = [
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
    """An app whose inference requests take the short way.

    Parameters
    ----------
    app : InferenceApp
    loop : AbstractEventLoop
        The event loop of the app's batcher; only connections on this loop take the short way.
    root_path : str
        The application's URL prefix.
    """

    app: InferenceApp
    loop: asyncio.AbstractEventLoop
    root_path: str = ""
    heads: RequestHeads = field(init=False)
    outcomes: Outcomes = field(init=False)
    turned_away: TurnedAway = field(init=False)
    accepts: AcceptQueue = field(default_factory=AcceptQueue, init=False)
    _default_headers: Headers | None = field(default=None, init=False)
    _parts: _Prepared = field(init=False)

    def __post_init__(self) -> None:
        path = (self.root_path + self.app.infer_path).encode()
        self.heads = RequestHeads(path, self.app.unusual_fields)
        self.outcomes = self.app.outcomes
        self.turned_away = TurnedAway(self.app, self.loop)

    def refusal(
        self, headers: Headers, *, too_late: bool, only_replica: bool
    ) -> tuple[bytes, bytes]:
        """Return the answer to requests that are turned away, before and after the request id."""
        return self._prepared(headers).refusals[too_late][only_replica]

    def encode(
        self, answer: Answer, headers: Headers, *, only_replica: bool
    ) -> tuple[bytes, bytes]:
        """Count an answer, and return it as bytes, before and after the request id."""
        self.app.service.answers[answer[0]] += 1
        return self._prepared(headers).encode(answer, only_replica=only_replica)

    def _prepared(self, headers: Headers) -> _Prepared:
        """Return the parts that answers have in common, made anew once a second."""
        if headers is not self._default_headers:
            limit = self.app.balancers.share(self.app.concurrency)
            self._default_headers, self._parts = headers, _Prepared(headers, limit)
        return self._parts


def _status_line(status: int) -> bytes:
    return STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status


def _lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
