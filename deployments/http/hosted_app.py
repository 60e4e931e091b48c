"""An app whose inference requests take the fast path: its prepared answers, and its rejections."""

import asyncio
import time

from deployments.batcher.rejections import rejection_of
from deployments.haproxy.refusals import MAX_BODY_HEADER, RETURN_HEADER, status_on_wire
from deployments.http.answers import JSON, Answer, counted_as, error_answer, to_http
from deployments.http.app import InferenceApp
from deployments.http.request_head import HeaderCache, Headers
from deployments.observability.request_info import RequestInfo
from policy.batcher.requests import Refusal


class RejectionCounter:
    """Count and log the requests that one iteration of the event loop rejects unparsed.

    Counting and logging each of them would cost as much as all else that a rejection takes.
    """

    def __init__(self, app: InferenceApp) -> None:
        self._app = app
        #: The first request of each refusal, and the arrival times and rows of all.
        self._rejected: dict[Refusal, tuple[RequestInfo, list[tuple[float, int]]]] = {}

    def add(self, refusal: Refusal, arrival_s: float, rows: int, info: RequestInfo) -> None:
        if not self._rejected:
            asyncio.get_running_loop().call_soon(self._count)
        alike = self._rejected.get(refusal)
        if alike is None:
            alike = self._rejected[refusal] = info, []
        alike[1].append((arrival_s, rows))

    def _count(self) -> None:
        rejected, self._rejected = self._rejected, {}
        app, now_s = self._app, time.monotonic()
        for refusal, (info, requests) in rejected.items():
            error, arrival_s, count = rejection_of(refusal), requests[0][0], len(requests)
            app.service.count_rejected(refusal, requests, now_s)
            app.service.answers[error.status, error.reason or ""] += count
            app.outcomes.totals.failed(arrival_s, count)
            app.outcomes.log.failed(error, info, arrival_s, likewise=count - 1)


class HostedApp:
    """An app whose inference requests take the fast path; `root_path` is its URL prefix."""

    def __init__(self, app: InferenceApp, root_path: str = "") -> None:
        self.app = app
        self.root_path = root_path
        self.heads = HeaderCache((root_path + app.infer_path).encode())
        self.rejections = RejectionCounter(app)
        #: The header fields of all answers: uvicorn's, which are others once a second, and ours.
        self._default_headers: Headers | None = None
        self._headers: Headers = []
        #: How most answers begin, and the rejections, by whether they came too late and whether
        #: no other replica can be asked; both with these fields.
        self._start_of_json = b""
        self._rejections: list[list[tuple[bytes, bytes]]] = []

    def rejection(
        self, refusal: Refusal, headers: Headers, *, only_replica: bool
    ) -> tuple[bytes, bytes]:
        """Return the answer to a rejected request, before and after the request id."""
        self._use(headers)
        return self._rejections[refusal is Refusal.EXPIRED][only_replica]

    def encode(
        self, answer: Answer, headers: Headers, *, only_replica: bool
    ) -> tuple[bytes, bytes]:
        """Count an answer, and return it as bytes, before and after the request id."""
        self.app.service.answers[counted_as(answer)] += 1
        self._use(headers)
        return self._encode(answer, only_replica=only_replica)

    def _use(self, headers: Headers) -> None:
        """Make the common parts of answers anew if uvicorn's header fields are others."""
        if headers is self._default_headers:
            return
        self._default_headers = headers
        self._headers = [*headers, (MAX_BODY_HEADER, b"%d" % self.app.max_body_bytes)]
        if (earliest_s := self.app.service.earliest_return_s) is not None:
            self._headers.append((RETURN_HEADER, b"%d" % earliest_s))
        self._start_of_json, _ = to_http((200, b"", [JSON]), self._headers)
        answers = [error_answer(rejection_of(one)) for one in (Refusal.FULL, Refusal.EXPIRED)]
        self._rejections = [
            [self._encode(answer, only_replica=only) for only in (False, True)]
            for answer in answers
        ]

    def _encode(self, answer: Answer, *, only_replica: bool) -> tuple[bytes, bytes]:
        status, body, fields = answer
        if status == 200 and fields == [JSON]:
            return self._start_of_json, b"content-length: %d\r\n\r\n%b" % (len(body), body)
        return to_http(
            (status_on_wire(status, only_replica=only_replica), body, fields), self._headers
        )
