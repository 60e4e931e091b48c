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
    _limit: int | None = field(default=None, init=False)
    #: By the limit that HAProxy is told.
    _default_lines: dict[int | None, bytes] = field(default_factory=dict, init=False)
    #: By the default lines, whether the request came too late, and whether no other replica can be
    #: asked.
    _refusals: dict[tuple[bytes, bool, bool], tuple[bytes, bytes]] = field(
        default_factory=dict, init=False
    )

    def __post_init__(self) -> None:
        path = (self.root_path + self.app.infer_path).encode()
        self.heads = RequestHeads(path, self.app.unusual_fields)
        self.pacer = RefusalPacer(self.loop, self.app.service.front_meter)
        self.turned_away = TurnedAway(self.app, self.loop)

    def default_lines(self, headers: Headers, balancer: bytes | None) -> bytes:
        """Return the header lines of every answer to a HAProxy: uvicorn's, and its limit.

        They are made anew once a second, and for each other limit.
        """
        if headers is not self._default_headers:
            self._default_headers, self._limit = headers, self.app.concurrency
            self._default_lines.clear()
            self._refusals.clear()
        limit, told = self._limit, self.app.limit_shares.told
        if told and balancer is not None:
            limit = told.get(balancer, limit)
        lines = self._default_lines.get(limit)
        if lines is None:
            lines = self._default_lines[limit] = _lines([*headers, limit_header(limit)])
        return lines

    def refusal(
        self, headers: Headers, balancer: bytes | None, *, too_late: bool, only_replica: bool
    ) -> tuple[bytes, bytes]:
        """Return the answer to requests that are turned away, before and after the request id."""
        lines = self.default_lines(headers, balancer)
        refusal = self._refusals.get((lines, too_late, only_replica))
        if refusal is None:
            refusal = _bytes(error_answer(ERRORS[too_late]), lines, only_replica=only_replica)
            self._refusals[lines, too_late, only_replica] = refusal
        return refusal

    def encode(
        self, answer: Answer, headers: Headers, balancer: bytes | None, *, only_replica: bool
    ) -> tuple[bytes, bytes]:
        """Count an answer, and return it as bytes, before and after the request id."""
        self.app.service.answers[answer[0]] += 1
        return _bytes(answer, self.default_lines(headers, balancer), only_replica=only_replica)


def _bytes(answer: Answer, default_lines: bytes, *, only_replica: bool) -> tuple[bytes, bytes]:
    status, body, fields = answer
    status_line = _status_line(status_on_wire(status, only_replica=only_replica))
    start = b"".join((status_line, default_lines, _lines(fields)))
    return start, b"content-length: %d\r\n\r\n%b" % (len(body), body)


def _status_line(status: int) -> bytes:
    return STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status


def _lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
