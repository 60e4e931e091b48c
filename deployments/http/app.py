"""The replica's HTTP interface: an ASGI app for the Open Inference Protocol v2.

The app uses no web framework: it parses each request once and passes it to the batcher. It depends
on neither Ray nor the model, only on a `Service`.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Send
from starlette.types import Scope as AsgiScope

from deployments.access.control import DENIALS, OPERATIONS, scope_of
from deployments.access.web_pages import is_foreign
from deployments.batcher.rejections import rejection_of
from deployments.config.user_config import Scope
from deployments.console.planner import Call, calls_for_model
from deployments.errors import BusyError, RequestError, UnauthorizedError
from deployments.haproxy.refusals import (
    LIMIT_HEADER,
    MAX_BODY_HEADER,
    ONLY_REPLICA_HEADER,
    UNLIMITED,
    HaproxyPeers,
    status_on_wire,
)
from deployments.http.answers import (
    Answer,
    Outcomes,
    check_method,
    compressed,
    counted_as,
    pays,
)
from deployments.http.console import EVENTS, Console
from deployments.http.inference_protocol import too_much_json
from deployments.http.request_body import SMALL_BODY_BYTES, Reservation, read_body
from deployments.http.request_head import (
    AUTHORIZATION,
    CONTENT_LENGTH,
    HEADER_LENGTH,
    MAX_REQUEST_ID_BYTES,
    REQUEST_ID,
    Headers,
    accepts_gzip,
    check_single_valued,
    read_length,
    read_priority,
    read_timeout_ms,
)
from deployments.http.resources import Resources
from deployments.http.service import Service
from deployments.http.signature import MAX_JSON_BYTES, claimed_rows
from deployments.http.unread_answers import UnreadAnswers
from deployments.observability.request_info import TRACEPARENT, RequestIds, RequestInfo
from policy.batcher.requests import Refusal

logger = logging.getLogger("sojourn.http")


def path_of(scope: AsgiScope) -> str:
    """Return the path of a request, without the application's prefix and slashes at its end."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")).rstrip("/")


def _until_disconnect(receive: Receive) -> Receive:
    """Return `receive`, but it says that the client left where it raised.

    Ray's proxy, which carries requests while no replica serves, cancels its own calls then.
    """

    async def received() -> Message:
        try:
            return await receive()
        except Exception as error:
            logger.debug("the request's carrier gave it up: %r", error)
            return {"type": "http.disconnect"}

    return received


async def _cancel_on_disconnect(receive: Receive, task: asyncio.Task[Any]) -> None:
    if (await receive())["type"] == "http.disconnect":
        task.cancel()


#: Key of a scope: when the request could first have been read, by `time.monotonic`.
ARRIVAL = "sojourn.arrival_s"
#: Key of a scope: Ray, between this app and the client, adds the request id to the answer.
ID_IS_ADDED = "sojourn.id_is_added"
#: A larger answer may not leave at once, whether its client reads it or not.
SOCKET_BYTES = 64 << 10


def _id_field(scope: AsgiScope, info: RequestInfo) -> Headers:
    return [] if ID_IS_ADDED in scope else [(REQUEST_ID, info.request_id)]


async def _no_autoscaler() -> Mapping[str, Any]:
    return {"newest": None, "decisions": []}


class InferenceApp:
    """ASGI app for one `Service`, which another of the same model may replace.

    `server_version` is what ``GET /v2`` reports, `autoscaler` returns the content of ``GET
    /sojourn/autoscaler``, and `more` the answers of further paths. `infer_path` is without the
    application's prefix. The `haproxies` that send requests divide `concurrency`.
    """

    def __init__(
        self,
        service: Service,
        server_version: str,
        autoscaler: Callable[[], Awaitable[Mapping[str, Any]]] = _no_autoscaler,
        more: Mapping[str, Callable[[], Answer]] | None = None,
        replica: str = "",
    ) -> None:
        self.service = service
        replica = replica or f"process {os.getpid()}"
        self.console = Console(self.reports, autoscaler, replica, self.planning)
        self.infer_path = f"/v2/models/{service.model_name}/infer"
        self.outcomes = Outcomes(service.model_name)
        self.haproxies = HaproxyPeers()
        self.unread_answers = UnreadAnswers()
        self._resources = Resources(server_version, autoscaler, self.outcomes.totals, more)
        self.request_ids = RequestIds()

    @property
    def concurrency(self) -> int | None:
        """Requests that the balancer should send at a time; None: as many as come."""
        return self.service.concurrency

    @property
    def max_body_bytes(self) -> int:
        """The largest body of a request, in bytes."""
        return self.service.max_body_bytes

    def limit(self, answer_bytes: int) -> int:
        """Return how many requests a HAProxy may have here at a time, for `LIMIT_HEADER`.

        It counts those whose answers its clients are still reading, too, which are no load: soon
        also the one that has an answer of `answer_bytes`, if that is large.
        """
        limit = self.concurrency
        if limit is None:
            return UNLIMITED
        return self.haproxies.share(
            limit + len(self.unread_answers) + (answer_bytes > SOCKET_BYTES)
        )

    def reports(self) -> list[Mapping[str, Any]]:
        """Return what ``GET /sojourn/policy`` tells of each model, the first model's first."""
        return [self.service.explain()]

    def planning(self, content: Any) -> dict[str, Call]:
        """Return the planner's calls for a what-if question; errors as of `calls_for_model`."""
        return calls_for_model(self.reports(), content)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return  # for a lifespan, uvicorn then takes the app as started
        receive = _until_disconnect(receive)
        # Other servers than `InferenceProtocol` do not say when it could have been read.
        arrival_s = scope.get(ARRIVAL) or time.monotonic()
        # This keeps the last of repeated fields; `_infer` rejects those where that matters.
        fields = dict(scope["headers"])
        info = RequestInfo(
            fields.get(REQUEST_ID, b"")[:MAX_REQUEST_ID_BYTES] or self.request_ids.make(),
            fields.get(TRACEPARENT),
        )
        try:
            if path_of(scope) == EVENTS:
                await self._stream(scope, fields, receive, send, info)
                return
            status, body, headers = await self._route(scope, fields, receive, arrival_s, info)
        except (asyncio.CancelledError, ClientDisconnect):
            # The client disconnected or the server is shutting down: nobody waits for an answer.
            return
        except Exception as error:
            status, body, headers = self.outcomes.failure(error, info, arrival_s)
            if isinstance(error, DENIALS):
                self.service.event_loop_meter.requests_refused(1)
            if isinstance(error, UnauthorizedError):
                # Nothing more of a stranger's body is read.
                headers.append((b"connection", b"close"))
        self.service.answers[counted_as((status, body, headers))] += 1
        headers.append((b"content-length", b"%d" % len(body)))
        headers.extend(_id_field(scope, info))
        headers.append((LIMIT_HEADER, b"%d" % self.limit(len(body))))
        headers.append((MAX_BODY_HEADER, b"%d" % self.max_body_bytes))
        if scope["method"] == "HEAD":
            body = b""
        status = status_on_wire(status, only_replica=ONLY_REPLICA_HEADER in fields)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _route(
        self,
        scope: AsgiScope,
        fields: Mapping[bytes, bytes],
        receive: Receive,
        arrival_s: float,
        info: RequestInfo,
    ) -> Answer:
        path, method = path_of(scope), scope["method"]
        info.token = self.admit_client(fields, scope_of(path))
        if self.console.has(path):
            slash = scope["path"].endswith("/")
            return await self.console.answer(method, path, fields, receive, slash=slash)
        if path != self.infer_path:
            resource = await self._resources.answer(self.service, method, path)
            if resource is not None:
                return resource
        check_method(method, "POST")
        try:
            answer = await self._infer(scope, fields, receive, arrival_s, info)
        except Exception as error:
            if not isinstance(error, (*DENIALS, ClientDisconnect)):
                self.outcomes.totals.failed(arrival_s)
            raise
        if accepts_gzip(fields) and pays(answer):
            return await asyncio.to_thread(compressed, answer)
        return answer

    def admit_client(self, fields: Mapping[bytes, bytes], scope: Scope | None) -> str | None:
        """Admit a request, as `AccessControl.admit` does."""
        return self.service.access.admit(
            fields.get(AUTHORIZATION), scope, time.monotonic(), is_foreign=is_foreign(fields)
        )

    async def _stream(
        self,
        scope: AsgiScope,
        fields: Mapping[bytes, bytes],
        receive: Receive,
        send: Send,
        info: RequestInfo,
    ) -> None:
        authorization = fields.get(AUTHORIZATION)
        info.token = self.admit_client(fields, OPERATIONS)
        check_method(scope["method"], "GET")

        def may_go_on() -> bool:
            service = self.service
            return not service.draining and service.access.allows(authorization, OPERATIONS)

        await self.console.stream(receive, send, _id_field(scope, info), may_go_on)
        self.service.answers[200, ""] += 1

    async def _infer(
        self,
        scope: AsgiScope,
        fields: Mapping[bytes, bytes],
        receive: Receive,
        arrival_s: float,
        info: RequestInfo,
    ) -> Answer:
        service = self.service
        if len(fields) < len(scope["headers"]):
            check_single_valued(scope["headers"])
        header_length = read_length(fields, HEADER_LENGTH)
        timeout_ms, priority = read_timeout_ms(fields), read_priority(fields)
        service.access.check_priority(info.token, priority)
        length = read_length(fields, CONTENT_LENGTH) or 0
        if header_length is None and MAX_JSON_BYTES < length <= service.max_body_bytes:
            raise too_much_json()
        if length > SMALL_BODY_BYTES:
            # No need to read it if there is no room.
            self._admit(b"", arrival_s, priority)
        with Reservation(service.bodies, info.token) as reservation:
            try:
                body = await read_body(receive, fields, service.max_body_bytes, reservation.grow_to)
            except BusyError:
                service.count_rejected(Refusal.FULL, [(arrival_s, 1)], time.monotonic())
                raise
            if length <= SMALL_BODY_BYTES:
                self._admit(body, arrival_s, priority)
            request = service.parse(body, header_length, timeout_ms, priority, info, arrival_s)
            task = asyncio.current_task()
            assert task is not None
            watch = asyncio.create_task(_cancel_on_disconnect(receive, task))
            status = 500
            try:
                outputs = await service.infer(request, arrival_s, info)
                answer = self.outcomes.success(request, outputs, service, arrival_s)
                status = answer[0]
            except RequestError as error:
                status = error.status
                raise
            finally:
                watch.cancel()
                info.end_trace(status)
        return answer

    def _admit(self, body: bytes, arrival_s: float, priority: int) -> None:
        """Raise unless one more row can be answered in time."""
        service = self.service
        refusal = service.admit(arrival_s, time.monotonic(), priority)
        if refusal is not None:
            rows = claimed_rows(body, service.signature.max_rows)
            service.count_rejected(refusal, [(arrival_s, rows)], time.monotonic())
            raise rejection_of(refusal)
