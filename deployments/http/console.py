"""The paths of the console: its page, its stream of events, and its what-if questions."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.types import Receive, Send

from autoscaler.worker import WorkerError
from deployments.console.feed import PERIOD_S, Feed, Report
from deployments.console.planner import Call, Planner
from deployments.console.static_files import PAGE, static_file
from deployments.errors import BadRequestError, BusyError, ModelError
from deployments.http.answers import Answer, check_method, json_answer
from deployments.http.request_body import load_json, read_body
from deployments.http.request_head import Headers
from policy.errors import InvalidInputError

logger = logging.getLogger("sojourn.console")

_PAGE, _STATIC = "/sojourn", "/sojourn/static/"
EVENTS, _PLAN = "/sojourn/events", "/sojourn/plan"
#: Streams of one replica; HAProxy takes one more to another replica.
MAX_STREAMS = 16
_MAX_BODY_BYTES = 16 << 10


class Console:
    """The console of one replica; `reports` and `autoscaler` are those of its `Feed`.

    `planning` returns the planner's calls for the content of a what-if question.
    """

    def __init__(
        self,
        reports: Callable[[], Sequence[Report]],
        autoscaler: Callable[[], Awaitable[Report]],
        replica: str,
        planning: Callable[[Any], Mapping[str, Call]],
    ) -> None:
        self._feed = Feed(reports, autoscaler, replica)
        self._planning = planning
        self._planner = Planner()
        self.streams = 0

    @staticmethod
    def has(path: str) -> bool:
        return path in (_PAGE, _PLAN) or path.startswith(_STATIC)

    async def answer(
        self,
        method: str,
        path: str,
        fields: Mapping[bytes, bytes],
        receive: Receive,
        *,
        slash: bool,
    ) -> Answer:
        """Return the answer to a request for the page, one of its files, or a plan.

        The path is without the application's prefix, and without slashes at its end.
        """
        if path == _PLAN:
            check_method(method, "POST")
            return json_answer(await self._plan(await read_body(receive, fields, _MAX_BODY_BYTES)))
        check_method(method, "GET", "HEAD")
        if path == _PAGE and not slash:
            # The page's own addresses are relative to it.
            return 308, b"", [(b"location", b"sojourn/")]
        body, headers = static_file(PAGE if path == _PAGE else path.removeprefix(_STATIC))
        return 200, body, headers

    async def _plan(self, body: bytes) -> dict[str, Any]:
        content = load_json(body)
        try:
            calls = self._planning(content)
        except InvalidInputError as error:
            raise BadRequestError(str(error)) from None
        try:
            return await self._planner.ask(calls)
        except WorkerError as error:
            raise ModelError(str(error)) from error

    async def stream(
        self, receive: Receive, send: Send, headers: Headers, may_go_on: Callable[[], bool]
    ) -> None:
        """Send events until the page is closed, or `may_go_on`, asked before each, returns False.

        `headers` are more than the content type. `BusyError` if there are `MAX_STREAMS` already, or
        this one would end at once: HAProxy tries another replica.
        """
        if not may_go_on():
            raise BusyError("this replica is about to stop")
        if self.streams >= MAX_STREAMS:
            raise BusyError(f"this replica has {MAX_STREAMS} open consoles; close one of them")
        self.streams += 1
        left = asyncio.create_task(_until_left(receive))
        try:
            event = await self._feed.next()
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [
                        (b"content-type", b"text/event-stream"),
                        (b"cache-control", b"no-store"),
                        (b"x-accel-buffering", b"no"),
                        *headers,
                    ],
                }
            )
            try:
                while True:
                    # `LimitedProtocol` breaks off a connection whose page reads nothing.
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                    if (await asyncio.wait([left], timeout=PERIOD_S))[0] or not may_go_on():
                        break
                    event = await self._feed.next()
                await send({"type": "http.response.body", "body": b""})
            except Exception:
                # The answer has begun, so nothing can be said of it; the page asks again.
                logger.exception("a console's stream ended")
        finally:
            self.streams -= 1
            left.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await left

    def close(self) -> None:
        self._planner.close()


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
