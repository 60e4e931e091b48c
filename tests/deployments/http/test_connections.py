import asyncio
import json
from collections import Counter
from unittest import mock

import pytest
import uvicorn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from deployments.access.control import AccessControl
from deployments.batcher.event_loop_meter import EventLoopMeter
from deployments.haproxy.refusals import RETURN_HEADER
from deployments.http.app import InferenceApp
from deployments.http.hosted_app import HostedApp
from deployments.http.limited_protocol import LINGER_S, READ_TIMEOUT_S
from deployments.http.protocol import InferenceProtocol
from deployments.http.request_body import BodyBudget
from deployments.http.service import Service
from deployments.http.signature import Signature
from deployments.observability.inference_statistics import BatchTotals
from deployments.observability.tracing import Tracing
from policy.batcher.requests import Refusal
from tests.support.clocks.virtual_asyncio import Transport, VirtualTimeLoop
from tests.support.http.raw_requests import GZIP, INFER, post
from tests.support.models.doubles_service import Doubles, body

LIMIT_S = 10.0
KEEP_ALIVE_S = 5
ANSWERS_AFTER_S = 0.5
MAX_BODY_BYTES = 200_000


class SlowService:
    """Answers after `ANSWERS_AFTER_S`, in virtual time."""

    model_name, model_version, platform = "doubles", "1", "python"
    signature = Signature(Doubles.inputs, Doubles.outputs, max_rows=4)
    max_body_bytes = MAX_BODY_BYTES
    receive_timeout_s = LIMIT_S
    ready = True
    concurrency = None
    earliest_return_s = 7

    def __init__(self, loop, *, full):
        self._loop, self._full = loop, full
        self.access = AccessControl()
        self.tracing = Tracing("doubles", "1")
        self.bodies = BodyBudget(1 << 30)
        self.answers: Counter[tuple[int, str]] = Counter()
        self.batch_totals = BatchTotals()
        self.event_loop_meter = EventLoopMeter(lambda _: None, lambda *_: None)

    def admit(self, arrival_s, now_s, priority=0):
        return Refusal.FULL if self._full else None

    def count_rejected(self, refusal, requests, now_s): ...

    def count_answered(self, rows, arrival_s): ...

    def infer_nowait(self, request, arrival_s, on_done, trace=None):
        outputs = {"y": 2 * request.inputs["x"]}
        return self._loop.call_later(ANSWERS_AFTER_S, on_done, outputs)

    infer, parse = Service.infer, Service.parse


def padded(length, *lines):
    return post(json.dumps(body((1, 2))).encode().ljust(length), *lines)


GOOD = padded(0)
#: Requests that never end, if a byte or so is missing, by the way that they take.
WAYS = {
    "short": padded(2_000),
    "short, long": padded(150_000),
    "asgi": padded(2_000, "Connection: close"),
    "asgi, long": padded(150_000, "X-Request-Priority: 0", "Expect: nothing"),
    "too large": padded(MAX_BODY_BYTES + 50_000),
    "gzip": padded(9_000, GZIP),
    "unknown encoding": padded(9_000, "Content-Encoding: br"),
    "chunked": f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    + b"3e8\r\n%b\r\n" % (b" " * 1000) * 9,
    "other model": padded(9_000).replace(b"doubles", b"another", 1),
    "get": b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 5_000 + b"\r\n\r\n",
}


async def trickle(protocol, transport, pieces):
    """Have the protocol read each piece after a pause; return when it did."""
    loop = asyncio.get_running_loop()
    read_s = []
    for pause_s, piece in pieces:
        await asyncio.sleep(pause_s)
        while not transport.reading.is_set() and not transport.is_closing():
            await transport.reading.wait()
        if transport.is_closing():
            break
        read_s.append(loop.time())
        protocol.data_received(piece)
    return read_s


async def connect(loop, *, full):
    service = SlowService(loop, full=full)
    app = InferenceApp(service, "1")
    config = uvicorn.Config(app, access_log=False, log_config=None, timeout_keep_alive=KEEP_ALIVE_S)
    config.load()
    protocol = InferenceProtocol(config, ServerState(), {}, _loop=loop)
    InferenceProtocol.hosted = HostedApp(app)
    transport = Transport(loop)
    protocol.connection_made(transport)
    return protocol, transport


def run_connected(test, *, full):
    """Run a test of a connection, and the transport under it, to a replica that may be full."""

    async def run():
        protocol, transport = await connect(loop, full=full)
        await test(protocol, transport)
        protocol.connection_lost(None)

    loop = VirtualTimeLoop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())
    finally:
        InferenceProtocol.hosted = None


def connected(test):
    """Make a test of a connection to a full replica, which refuses at once."""
    return lambda: run_connected(test, full=True)


PAUSES_S = st.one_of(st.just(0.0), st.floats(0, 3))


@pytest.mark.slow
@settings(max_examples=100)
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
    way, before, cuts, missing, drip_s, full
):
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

    async def test(protocol, transport):
        for _ in range(before):
            await trickle(protocol, transport, [(0.2, GOOD)])
            while transport.written == [] or protocol._head is not None:
                await asyncio.sleep(0.1)
        answers_before = len(transport.written)
        reading = asyncio.create_task(trickle(protocol, transport, pieces))
        await asyncio.sleep(4 * LIMIT_S)
        reading.cancel()
        found = await asyncio.gather(reading, return_exceptions=True)
        assert transport.closed_s is not None, "the connection stays open"
        if isinstance(found[0], list):
            assert transport.closed_s <= found[0][0] + LIMIT_S + LINGER_S + 1e-6
        answers = b"".join(data for _, data in transport.written[answers_before:])
        assert answers.count(b"HTTP/1.1 ") <= 1, answers
        assert protocol.hosted.app.service.bodies.used_bytes == 0

    run_connected(test, full=full)


def test_requests_in_time_are_answered_however_long_the_connection_lasts():
    """The limit is each request's own: they take nearly all of it, one after the other."""

    async def test(protocol, transport):
        for answers in range(4):
            await trickle(protocol, transport, [(0.0, GOOD[:-9]), (0.9 * LIMIT_S, GOOD[-9:])])
            while len(transport.written) == answers:
                await asyncio.sleep(0.1)
        assert asyncio.get_running_loop().time() > 3 * LIMIT_S
        assert all(data.startswith(b"HTTP/1.1 200") for _, data in transport.written)
        assert transport.closed_s is None

    run_connected(test, full=False)


@pytest.mark.parametrize("requests", [1, 2])
def test_a_body_that_is_no_http_takes_no_answer_from_those_before_it(requests):
    """They are being answered when it comes, or wait for that."""
    head, _, _ = WAYS["chunked"].partition(b"\r\n\r\n")

    async def test(protocol, transport):
        before = padded(0, "Expect: nothing") * requests
        protocol.data_received(before + head + b"\r\n\r\nzz\r\n")
        await asyncio.sleep((requests + 1) * ANSWERS_AFTER_S)
        answers = b"".join(data for _, data in transport.written)
        assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b"HTTP/1.1 ") == requests
        assert transport.closed_s is not None
        assert protocol.hosted.app.service.answers == {(200, ""): requests}

    run_connected(test, full=False)


@connected
async def test_a_refusal_says_when_clients_may_return(protocol, transport):
    protocol.data_received(GOOD)
    await asyncio.sleep(0)
    ((_, data),) = transport.written
    assert b"\r\n%b: 7\r\n" % RETURN_HEADER in data


@connected
async def test_answers_to_a_client_that_does_not_read_are_not_piled_up(protocol, transport):
    protocol.data_received(GOOD)
    await asyncio.sleep(0)
    protocol.pause_writing()
    protocol.data_received(GOOD * 2)
    await asyncio.sleep(1)
    assert len(transport.written) == 1
    assert not transport.reading.is_set()
    protocol.resume_writing()
    await asyncio.sleep(1)
    assert len(transport.written) == 3
    assert transport.reading.is_set()


@connected
async def test_a_client_that_reads_nothing_of_its_answer_is_left(protocol, transport):
    transport.unread_bytes = 90_000
    protocol.pause_writing()
    for transport.unread_bytes in (80_000, 70_000):
        await asyncio.sleep(READ_TIMEOUT_S + 1)
        assert not transport.aborted
    protocol.resume_writing()
    await asyncio.sleep(READ_TIMEOUT_S)
    protocol.pause_writing()
    await asyncio.sleep(READ_TIMEOUT_S - 1)
    assert not transport.aborted
    await asyncio.sleep(2)
    assert transport.aborted


@connected
async def test_the_limit_of_unread_answers_is_the_one_in_force(protocol, transport):
    """A changed limit held for bodies only."""
    app = protocol.hosted.app
    slow = mock.Mock(**{"get_write_buffer_size.return_value": 90_000})
    app.unread_answers.add(slow, app.service.bodies.limit_bytes)
    app.service.bodies.limit_bytes = 100_000
    transport.unread_bytes = 90_000
    protocol.pause_writing()
    slow.abort.assert_called_once()


@connected
async def test_a_client_that_never_reads_its_small_answers_is_left(protocol, transport):
    """Pipelined requests whose answers fill no buffer held a connection for ever."""
    protocol.data_received(GOOD * 3)
    transport.unread_bytes = 900
    await asyncio.sleep(KEEP_ALIVE_S + 1)
    assert transport.closed_s == KEEP_ALIVE_S
    assert not transport.aborted
    await asyncio.sleep(READ_TIMEOUT_S)
    assert transport.aborted


@connected
async def test_a_refused_client_cannot_try_again_in_the_same_iteration(protocol, transport):
    """Otherwise the poll would not return while clients try again, and no batch would start."""
    protocol.data_received(GOOD)
    assert not transport.written
    await asyncio.sleep(0)
    assert transport.written[0][1].startswith(b"HTTP/1.1 503")


@connected
async def test_nothing_is_written_to_a_client_that_left(protocol, transport):
    protocol.data_received(GOOD)
    protocol.connection_lost(None)
    await asyncio.sleep(1)
    assert not transport.written


@connected
async def test_an_idle_connection_is_closed_after_the_keep_alive_timeout(protocol, transport):
    for _ in range(4):
        protocol.data_received(GOOD)
        await asyncio.sleep(4)
    await asyncio.sleep(2)
    assert transport.closed_s == 3 * 4 + KEEP_ALIVE_S


@connected
async def test_empty_lines_do_not_keep_a_connection_open(protocol, transport):
    for _ in range(3):
        protocol.data_received(b"\r\n")
        await asyncio.sleep(2)
    assert transport.closed_s <= KEEP_ALIVE_S


@connected
async def test_a_stopping_server_answers_what_it_is_reading(protocol, transport):
    protocol.data_received(GOOD[:-9])
    protocol.shutdown()
    assert transport.closed_s is None
    protocol.data_received(GOOD[-9:])
    await asyncio.sleep(0)
    assert b"\r\nconnection: close\r\n" in transport.written[0][1]
    assert transport.closed_s is not None


@connected
async def test_the_senders_own_pauses_do_not_count_as_waiting(protocol, transport):
    """Of what comes between two reads, only the time in which the rest could be read counts."""
    meter = protocol.hosted.app.service.event_loop_meter
    reads = iter([(10.0, 9.5), (12.0, 11.25), (13.0, 11.5)])  # when read, since when readable
    present = [0.0, 0.0]

    def monotonic():
        present[:] = next(reads)
        return present[0]

    with (
        mock.patch("deployments.http.protocol.time", mock.Mock(monotonic=monotonic)),
        mock.patch.object(meter, "readable_since_s", side_effect=lambda now_s: present[1]),
        mock.patch.object(protocol, "_admit", return_value=True),
        mock.patch.object(protocol, "_submit") as submit,
    ):
        for piece in (GOOD[:-9], GOOD[-9:-5], GOOD[-5:]):
            protocol.data_received(piece)
    submit.assert_called_once()
    # Between 10 and 11.25 the sender paused; at 12 the rest had been readable since 11.5.
    assert protocol._arrival_s == 9.5 + 1.25
