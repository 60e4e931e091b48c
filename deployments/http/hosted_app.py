"""An app whose inference requests take the short way, and what their answers have in common."""

import asyncio
from dataclasses import dataclass, field

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from deployments.haproxy.concurrency_limit import limit_header
from deployments.haproxy.only_replica import status_on_wire
from deployments.http.answers import Answer, error_answer
from deployments.http.app import InferenceApp
from deployments.http.refusals import RefusalPacer
from deployments.http.request import Headers
from deployments.http.request_head import RequestHeads
from deployments.http.turned_away import ERRORS, TurnedAway


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
    pacer: RefusalPacer = field(init=False)
    turned_away: TurnedAway = field(init=False)
    _default_headers: Headers | None = field(default=None, init=False)
    _default_lines: bytes = field(default=b"", init=False)
    #: By whether the request came too late, and whether no other replica can be asked.
    _refusals: list[list[tuple[bytes, bytes]]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        path = (self.root_path + self.app.infer_path).encode()
        self.heads = RequestHeads(path, self.app.unusual_fields)
        self.pacer = RefusalPacer(self.loop, self.app.service.front_meter)
        self.turned_away = TurnedAway(self.app, self.loop)

    def default_lines(self, headers: Headers) -> bytes:
        """Return the header lines of every answer, once a second: uvicorn's, and the limit."""
        if headers is not self._default_headers:
            told = limit_header(self.app.concurrency)
            self._default_headers, self._default_lines = headers, _lines([*headers, told])
            self._refusals = [
                [self._bytes(error_answer(error), only_replica=only) for only in (False, True)]
                for error in ERRORS
            ]
        return self._default_lines

    def refusal(
        self, headers: Headers, *, too_late: bool, only_replica: bool
    ) -> tuple[bytes, bytes]:
        """Return the answer to requests that are turned away, before and after the request id."""
        if headers is not self._default_headers:
            self.default_lines(headers)
        return self._refusals[too_late][only_replica]

    def encode(
        self, answer: Answer, headers: Headers, *, only_replica: bool
    ) -> tuple[bytes, bytes]:
        """Count an answer, and return it as bytes, before and after the request id."""
        self.app.service.answers[answer[0]] += 1
        self.default_lines(headers)
        return self._bytes(answer, only_replica=only_replica)

    def _bytes(self, answer: Answer, *, only_replica: bool) -> tuple[bytes, bytes]:
        status, body, fields = answer
        status_line = _status_line(status_on_wire(status, only_replica=only_replica))
        start = b"".join((status_line, self._default_lines, _lines(fields)))
        return start, b"content-length: %d\r\n\r\n%b" % (len(body), body)


def _status_line(status: int) -> bytes:
    return STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status


def _lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
