"""However its bytes arrive, an unfinished request is ended within its time limit.

The real protocol and app run on a loop in virtual time, over a service that answers at once.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import uvicorn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from deployments.access.control import AccessControl
from deployments.batcher.event_loop_meter import EventLoopMeter
from deployments.batcher.queued_request import Outcome
from deployments.http.app import InferenceApp
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.protocol import LINGER_S, HostedApp, InferenceProtocol
from deployments.http.request_body import BodyBudget
from deployments.http.signature import Signature
from deployments.observability.inference_statistics import BatchTotals
from deployments.observability.tracing import Tracing
from policy.batcher.requests import Refusal
from tests.support.clocks.virtual_asyncio import Transport, VirtualTimeLoop
from tests.support.models.doubles_service import Doubles, body

LIMIT_S = 10.0
ANSWERS_AFTER_S = 0.5
MAX_BODY_BYTES = 200_000
HEAD = "POST /v2/models/doubles/infer HTTP/1.1\r\nHost: x\r\n"


class StubService:
    """Answers after half a second, in virtual time."""

    model_name, model_version, platform = "doubles", "1", "python"
    signature = Signature(Doubles.inputs, Doubles.outputs, max_rows=4)
    max_body_bytes = MAX_BODY_BYTES
    receive_timeout_s = LIMIT_S
    ready = True
    concurrency = None

    def __init__(self, loop: asyncio.AbstractEventLoop, *, full: bool) -> None:
        self._loop, self._full = loop, full
        self.access = AccessControl()
        self.tracing = Tracing("doubles", "1")
        self.bodies = BodyBudget(1 << 30)
        self.answers: Counter[int] = Counter()
        self.batch_totals = BatchTotals()
        self.event_loop_meter = EventLoopMeter(lambda _: None, lambda *_: None)

    def admit(self, arrival_s: float, now_s: float, priority: int = 0) -> Refusal | None:
        return Refusal.FULL if self._full else None

    def count_rejected(
        self, refusal: Refusal, requests: Sequence[tuple[float, int]], now_s: float
    ) -> None: ...

    def count_answered(self, rows: int, arrival_s: float) -> None: ...

    def infer_nowait(
        self,
        request: InferenceRequest,
        arrival_s: float,
        on_done: Callable[[Outcome], None],
        trace: object = None,
    ) -> asyncio.TimerHandle:
        outputs = {"y": 2 * request.inputs["x"]}
        return self._loop.call_later(ANSWERS_AFTER_S, on_done, outputs)

    async def infer(self, request: InferenceRequest, *_: object) -> Outcome:
        await asyncio.sleep(ANSWERS_AFTER_S)
        return {"y": 2 * request.inputs["x"]}


def post(*fields: str, length: int | None = None) -> bytes:
    """Return a whole request; `length` pads its body."""
    content = json.dumps(body((1, 2))).encode()
    content += b" " * ((length or 0) - len(content))
    lines = [HEAD, *(f"{field}\r\n" for field in fields), f"Content-Length: {len(content)}\r\n\r\n"]
    return "".join(lines).encode() + content


#: Requests that never end, if a byte or so is missing, by the way that they take.
WAYS = {
    "short": post(length=2_000),
    "short, long": post(length=150_000),
    "asgi": post("Connection: close", length=2_000),
    "asgi, long": post("X-Request-Priority: 0", "Expect: nothing", length=150_000),
    "too large": post(length=MAX_BODY_BYTES + 50_000),
    "gzip": post("Content-Encoding: gzip", length=9_000),
    "unknown encoding": post("Content-Encoding: br", length=9_000),
    "chunked": HEAD.encode()
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"3e8\r\n%b\r\n" % (b" " * 1000) * 9,
    "other model": post(length=9_000).replace(b"doubles", b"another", 1),
    "get": b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 5_000 + b"\r\n\r\n",
}


async def trickle(
    protocol: InferenceProtocol, transport: Transport, pieces: list[tuple[float, bytes]]
) -> list[float]:
    """Have the protocol read each piece after a pause; return when it did."""
    loop = asyncio.get_running_loop()
    read_s: list[float] = []
    for pause_s, piece in pieces:
        await asyncio.sleep(pause_s)
        while not transport.reading.is_set() and not transport.is_closing():
            await transport.reading.wait()
        if transport.is_closing():
            break
        read_s.append(loop.time())
        protocol.data_received(piece)
    return read_s


async def connect(loop: asyncio.AbstractEventLoop, *, full: bool) -> tuple[Any, Transport]:
    service: Any = StubService(loop, full=full)
    app = InferenceApp(service, "1")
    config = uvicorn.Config(app, access_log=False, log_config=None, timeout_keep_alive=5)
    config.load()
    protocol = InferenceProtocol(config, ServerState(), {}, _loop=loop)
    InferenceProtocol.hosted = HostedApp(app, loop)
    transport = Transport(loop)
    protocol.connection_made(transport)
    return protocol, transport


PAUSES_S = st.one_of(st.just(0.0), st.floats(0, 3))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    way=st.sampled_from(sorted(WAYS)),
    before=st.integers(0, 2),
    cuts=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), PAUSES_S), max_size=12),
    missing=st.integers(1, 40),
    drip_s=st.one_of(st.none(), st.floats(0.1, 4)),
    full=st.booleans(),
)
@example("too large", 0, [(0.01, 0.0)], 1, 1.0, False)
@example("short, long", 0, [(0.01, 0.0)], 1, 1.0, True)
def test_an_unfinished_request_is_ended_within_its_time_limit(
    way: str,
    before: int,
    cuts: list[tuple[float, float]],
    missing: int,
    drip_s: float | None,
    full: bool,
) -> None:
    """Whole requests come before it, and it may stop anywhere, or go on a byte at a time.

    The answers that it gets: none or one, then the connection ends.
    """
    request = WAYS[way][:-missing]
    places = sorted({max(1, int(place * len(request))) for place, _ in cuts} | {len(request)})
    pauses_s = [pause_s for _, pause_s in cuts] + [0.0] * len(places)
    starts = [0, *places[:-1]]
    pieces = [
        (pause_s, request[start:stop])
        for start, stop, pause_s in zip(starts, places, pauses_s, strict=False)
    ]
    if drip_s is not None:
        pieces = pieces[: 1 + len(pieces) // 2]
        sent = sum(len(piece) for _, piece in pieces)
        pieces += [
            (drip_s, request[at : at + 1]) for at in range(sent, min(sent + 500, len(request)))
        ]
    loop = VirtualTimeLoop()

    async def run() -> None:
        protocol, transport = await connect(loop, full=full)
        for _ in range(before):
            await trickle(protocol, transport, [(0.2, post())])
            while transport.written == [] or protocol._head is not None:
                await asyncio.sleep(0.1)
        answers_before = len(transport.written)
        reading = asyncio.create_task(trickle(protocol, transport, pieces))
        await asyncio.sleep(4 * LIMIT_S)
        reading.cancel()
        (read_s,) = await asyncio.gather(reading, return_exceptions=True)
        began_s = read_s[0] if isinstance(read_s, list) else 0.0
        assert transport.closed_s is not None, "the connection stays open"
        if isinstance(read_s, list):
            assert transport.closed_s <= began_s + LIMIT_S + LINGER_S + 1e-6
        answers = b"".join(data for _, data in transport.written[answers_before:])
        assert answers.count(b"HTTP/1.1 ") <= 1, answers
        assert protocol.hosted.app.service.bodies.used_bytes == 0
        protocol.connection_lost(None)

    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())
    finally:
        InferenceProtocol.hosted = None


def test_requests_in_time_are_answered_however_long_the_connection_lasts() -> None:
    """The limit is each request's own: they take nearly all of it, one after the other."""
    loop, number = VirtualTimeLoop(), 4

    async def run() -> None:
        protocol, transport = await connect(loop, full=False)
        request = post()
        for answers in range(number):
            await trickle(protocol, transport, [(0.0, request[:-9]), (0.9 * LIMIT_S, request[-9:])])
            while len(transport.written) == answers:
                await asyncio.sleep(0.1)
        assert loop.time() > 3 * LIMIT_S
        assert all(data.startswith(b"HTTP/1.1 200") for _, data in transport.written)
        assert transport.closed_s is None
        protocol.connection_lost(None)

    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())
    finally:
        InferenceProtocol.hosted = None
