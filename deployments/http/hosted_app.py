"""An app whose inference requests take the short way, and what their answers have in common."""

import asyncio
from dataclasses import dataclass, field

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from deployments.errors import BusyError
from deployments.haproxy.only_replica import status_on_wire
from deployments.http.answers import Answer, error_answer
from deployments.http.app import FULL, InferenceApp
from deployments.http.refusals import RefusalPacer
from deployments.http.request import Headers
from deployments.http.request_head import RequestHeads


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
    _default_headers: Headers | None = field(default=None, init=False)
    _default_lines: bytes = field(default=b"", init=False)
    _refusals: list[tuple[bytes, bytes]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        path = (self.root_path + self.app.infer_path).encode()
        self.heads = RequestHeads(path, self.app.unusual_fields)
        self.pacer = RefusalPacer(self.loop, self.app.service.front_meter)

    def default_lines(self, headers: Headers) -> bytes:
        """Return the header lines that uvicorn adds to every answer; it renews them each second."""
        if headers is not self._default_headers:
            self._default_headers, self._default_lines = headers, _lines(headers)
            status, body, fields = error_answer(BusyError(FULL))
            start = self._default_lines + _lines(fields)
            end = b"content-length: %d\r\n\r\n%b" % (len(body), body)
            self._refusals = [
                (_status_line(status_on_wire(status, only_replica=only)) + start, end)
                for only in (False, True)
            ]
        return self._default_lines

    def refusal(self, headers: Headers, *, only_replica: bool) -> tuple[bytes, bytes]:
        """Return the answer to requests for which there is no room, before and after the id."""
        if headers is not self._default_headers:
            self.default_lines(headers)
        return self._refusals[only_replica]

    def encode(
        self, answer: Answer, headers: Headers, *, only_replica: bool
    ) -> tuple[bytes, bytes]:
        """Count an answer, and return it as bytes, before and after the request id."""
        status, body, fields = answer
        self.app.service.answers[status] += 1
        return (
            b"".join(
                (
                    _status_line(status_on_wire(status, only_replica=only_replica)),
                    self.default_lines(headers),
                    _lines(fields),
                )
            ),
            b"content-length: %d\r\n\r\n%b" % (len(body), body),
        )


def _status_line(status: int) -> bytes:
    return STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status


def _lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
