"""Sojourn's HTTP protocol beside uvicorn's own, over real sockets and a real service."""

import asyncio
import contextlib
import gzip
import itertools
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from deployments.haproxy.refusals import FINAL_STATUS, LIMIT_HEADER, ONLY_REPLICA_HEADER
from deployments.http.app import SOCKET_BYTES, InferenceApp
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.protocol import READ_TIMEOUT_S, HostedApp, InferenceProtocol
from deployments.http.unread_answers import HELD_BY_HAPROXY_S, UnreadAnswers
from deployments.serving.service import InferenceService
from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import PolicySource, Refusal
from tests.support.models.doubles_service import Doubles, body, hosting, listening, make_service

INFER = "/v2/models/doubles/infer"
_MADE_ID = re.compile(rb"(?<=^x-request-id: )[0-9a-f]{16}-[0-9a-f]+")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")


@dataclass
class Served:
    """A service behind a real server, and the paths of the requests that went to ASGI."""

    service: InferenceService
    model: Doubles
    port: int
    asgi_paths: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def serving(http: type[asyncio.Protocol] = InferenceProtocol) -> AsyncIterator[Served]:
    model = Doubles()
    async with make_service(model) as service:
        app = InferenceApp(service, "1")
        served = Served(service, model, 0)

        async def recorder(scope: Scope, receive: Receive, send: Send) -> None:
            served.asgi_paths.append(scope["path"])
            await app(scope, receive, send)

        with hosting(app):
            async with listening(recorder, http) as (_, served.port):
                yield served


def post(content: bytes | dict[str, Any], *lines: str, path: str = INFER) -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = [f"POST {path} HTTP/1.1", "Host: x", *lines, f"Content-Length: {len(data)}"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def metadata(*lines: str) -> bytes:
    head = ["GET /v2/models/doubles HTTP/1.1", "Host: x", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n"


def chunked(content: dict[str, Any]) -> bytes:
    data = json.dumps(content).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:9], data[9:])]
    return head.encode() + b"".join(parts) + b"0\r\n\r\n"


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    assert length is not None
    return head, await reader.readexactly(int(length[1]))


def normal(answer: tuple[bytes, bytes]) -> tuple[bytes, list[bytes], bytes]:
    """Return the status line, the sorted header lines but the date, and the body.

    Of a request id that the server made only the name is left.
    """
    status, *lines = answer[0].strip().split(b"\r\n")
    kept = [_MADE_ID.sub(b"", line) for line in lines if not line.startswith(b"date:")]
    return status, sorted(kept), answer[1]


async def exchange(port: int, pieces: Sequence[bytes], answers: int) -> list[tuple[bytes, bytes]]:
    """Send `pieces` on one connection, each read by the server on its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        for _ in range(3):  # the server reads it
            await asyncio.sleep(0)
    taken = [await read_answer(reader) for _ in range(answers)]
    writer.close()
    await writer.wait_closed()
    return taken


BINARY = (
    b'{"parameters":{"binary_data_output":true},"inputs":[{"name":"x","datatype":"FP32",'
    b'"shape":[1,2],"parameters":{"binary_data_size":8}}]}'
)
#: Name, request, and whether it takes the short way.
REQUESTS = {
    "one row": (post(body((1, 2))), True),
    "several rows": (post(body((1, 2), (3, 4), id="mine")), True),
    "with an id": (post(body((1, 2)), "x-request-id: abc"), True),
    "with another spelling": (post(body((1, 2)), "X-Request-ID: abc"), True),
    "with headers": (post(body((1, 2)), "X-Request-Priority: 1", "Accept: */*"), True),
    "binary": (
        post(BINARY + b"\0" * 8, f"Inference-Header-Content-Length: {len(BINARY)}"),
        True,
    ),
    "no JSON": (post(b"nothing"), True),
    "empty": (post(b""), True),
    "wrong input": (post({"inputs": []}), True),
    "too many rows": (post(body(*[(0, 0)] * 7)), True),
    "failing model": (post(body((13, 13))), True),
    "late before it starts": (post(body((1, 2)), "X-Request-Timeout-Ms: 0.001"), True),
    "wrong deadline": (post(body((1, 2)), "X-Request-Timeout-Ms: x"), False),
    "two deadlines": (
        post(body((1, 2)), "X-Request-Timeout-Ms: 5", "X-Request-Timeout-Ms: 6"),
        False,
    ),
    "body too large": (post(b" " * 2001), False),
    "compressed": (post(gzip.compress(b"{}"), "Content-Encoding: gzip"), False),
    "chunked": (chunked(body((5, 6))), False),
    "other path": (post(body((1, 2)), path="/v2/models/other/infer"), False),
    "version": (post(body((1, 2)), path="/v2/models/doubles/versions/1/infer"), False),
    "query": (post(body((1, 2)), path=INFER + "?x=1"), False),
    "metadata": (b"GET /v2/models/doubles HTTP/1.1\r\nHost: x\r\n\r\n", False),
    "wrong method": (f"GET {INFER} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), False),
    "stays open no longer": (post(body((1, 2)), "Connection: close"), False),
}


async def test_every_answer_is_uvicorns_own(caplog: pytest.LogCaptureFixture) -> None:
    answers: dict[str, list[Any]] = {name: [] for name in REQUESTS}
    caplog.set_level("CRITICAL")
    for http in (HttpToolsProtocol, InferenceProtocol):
        async with serving(http) as served:
            for name, (request, short) in REQUESTS.items():
                served.asgi_paths.clear()
                (answer,) = await exchange(served.port, [request], 1)
                answers[name].append(normal(answer))
                if http is InferenceProtocol:
                    assert bool(served.asgi_paths) is not short, name
    for name, (theirs, ours) in answers.items():
        assert ours == theirs, name


async def test_a_full_replica_refuses_as_over_uvicorn() -> None:
    answers = []
    for http in (HttpToolsProtocol, InferenceProtocol):
        async with serving(http) as served:
            served.service.batcher.core.drain()
            two = post(body((1, 2), (3, 4)), "x-request-id: abc")
            answers += await exchange(served.port, [two], 1)
            assert (served.service.batcher.rows.offered, served.service.batcher.rows.refused) == (
                2,
                2,
            )
            assert served.service.answers[503, "queue_full"] == 1
    assert normal(answers[0]) == normal(answers[1])
    assert b"\r\nx-sojourn-reason: queue_full\r\nretry-after: 1\r\n" in answers[1][0]


async def test_the_only_replica_refuses_by_a_status_that_haproxy_does_not_try_again() -> None:
    answers = []
    for http in (HttpToolsProtocol, InferenceProtocol):
        async with serving(http) as served:
            only = post(body((1, 2)), f"{ONLY_REPLICA_HEADER.decode()}: 1", "x-request-id: abc")
            wrong = post({"id": "x"}, f"{ONLY_REPLICA_HEADER.decode()}: 1", "x-request-id: abc")
            answers += [normal(answer) for answer in await exchange(served.port, [wrong], 1)]
            served.service.batcher.core.drain()
            answers += [normal(answer) for answer in await exchange(served.port, [only], 1)]
            # What clients are told is what is counted.
            assert served.service.answers == {(400, ""): 1, (503, "queue_full"): 1}
    assert answers[:2] == answers[2:]
    statuses = [int(status.split()[1]) for status, _, _ in answers[:2]]
    assert statuses == [400, FINAL_STATUS]


@pytest.mark.parametrize("path", [INFER, INFER + "/"], ids=["short way", "asgi"])
async def test_outputs_that_cannot_be_sent_are_no_answer_in_time(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A model that returned NaN alone kept its SLA, by the counts, though all clients had 500."""
    async with serving() as served:
        await exchange(served.port, [post(body((1, 2)), path=path)], 1)
        nan = {"y": np.full((1, 2), np.nan, np.float32)}
        monkeypatch.setattr(served.model, "forward", lambda _: nan)
        ((head, _),) = await exchange(served.port, [post(body((1, 2)), path=path)], 1)
        assert head.startswith(b"HTTP/1.1 500")
        assert served.service.autoscaling_stats()["answered_total"] == 1


@pytest.mark.parametrize("path", [INFER, INFER + "/"], ids=["short way", "asgi"])
async def test_an_internal_error_reveals_nothing_and_counts_as_a_failed_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    async with serving() as served:
        monkeypatch.setattr(served.service, "admit", lambda *_: 1 / 0)
        ((head, content),) = await exchange(served.port, [post(body((1, 2)), path=path)], 1)
        assert head.startswith(b"HTTP/1.1 500")
        assert json.loads(content) == {"error": "internal error while answering this request"}
        assert "ZeroDivisionError" in caplog.text
        hosted = InferenceProtocol.hosted
        assert hosted is not None
        totals = hosted.outcomes.totals.describe("m", "1", served.service.batch_totals)
        assert totals["inference_stats"]["fail"]["count"] == 1


@contextlib.contextmanager
def fixed_concurrency(core: BatcherCore, concurrency: int) -> Iterator[None]:
    """Limit the concurrency, whatever limits the solver or a tick puts in force."""
    use = core.use

    def use_fixed(table: PolicySource, limits: Limits) -> None:
        use(table, replace(limits, concurrency=concurrency))

    with mock.patch.object(core, "use", use_fixed):
        core.use(core.table, core.limits)
        yield


@pytest.mark.parametrize("http", [HttpToolsProtocol, InferenceProtocol])
async def test_no_header_changes_the_load_and_haproxy_is_told_how_many_to_send(
    http: type[asyncio.Protocol],
) -> None:
    async with serving(http) as served:
        with fixed_concurrency(served.service.batcher.core, 9):
            names = ("refused-before", "balancer", "only-replica", "sent-us", "concurrency-limit")
            lines = [f"x-sojourn-{name}: 999999999" for name in names]
            ((head, _),) = await exchange(served.port, [post(body((1, 2)), *lines)], 1)
        assert b"\r\n%b: 9\r\n" % LIMIT_HEADER in head
        stats = served.service.autoscaling_stats()
        assert (stats["offered_total"], stats["refused_total"]) == (1, 0)


@pytest.mark.parametrize("http", [HttpToolsProtocol, InferenceProtocol])
async def test_each_haproxy_that_is_connected_gets_a_part_of_the_limit(
    http: type[asyncio.Protocol],
) -> None:
    async with serving(http) as served:
        assert InferenceProtocol.hosted is not None
        haproxies = InferenceProtocol.hosted.app.haproxies
        haproxies.nodes = frozenset({"192.0.2.7", "192.0.2.8"})
        for peer in ("192.0.2.7", "192.0.2.8", "192.0.2.9", None):
            haproxies.connected(peer)
        with fixed_concurrency(served.service.batcher.core, 40):
            for start in (post(body((1, 2))), metadata()):
                ((head, _),) = await exchange(served.port, [start], 1)
                assert b"\r\n%b: 20\r\n" % LIMIT_HEADER in head


def mixed_stream() -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return pipelined requests of both ways, and the start and a part of each answer."""
    stream, expected = b"", []
    for number in range(4):
        stream += post(body((number, 0)))
        expected.append((b"200", b'"data":[%d.0,0.0]' % (2 * number)))
        stream += b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        expected.append((b"200", b"live"))
        stream += post(b"?", "x-request-id: a") + chunked(body((number, 1)))
        expected += [(b"400", b"not valid JSON"), (b"200", b'"data":[%d.0,2.0]' % (2 * number))]
    return stream, expected


STREAM, EXPECTED = mixed_stream()


async def test_pipelined_requests_are_answered_in_order_however_they_are_cut() -> None:
    random = np.random.default_rng(5)
    async with serving() as served:
        for cuts in range(25):
            places = np.sort(random.choice(np.arange(1, len(STREAM)), cuts, replace=False)).tolist()
            pieces = [STREAM[i:j] for i, j in itertools.pairwise([0, *places, len(STREAM)])]
            answers = await exchange(served.port, pieces, len(EXPECTED))
            for (head, content), (status, part) in zip(answers, EXPECTED, strict=True):
                assert head.startswith(b"HTTP/1.1 " + status), places
                assert part in content, places


async def test_a_slow_sender_is_answered() -> None:
    async with serving() as served:
        request = post(body((1, 2)))
        start = request.index(b"\r\n\r\n") + 4
        head_and_bytes = [request[:start]] + [bytes([byte]) for byte in request[start:]]
        every_byte = [bytes([byte]) for byte in request]
        for pieces in (head_and_bytes, every_byte):
            ((head, _),) = await exchange(served.port, pieces, 1)
            assert head.startswith(b"HTTP/1.1 200")
        assert served.asgi_paths == [INFER], "only a head in pieces needs uvicorn's parser"


async def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async with serving() as served:
        request = post(body((1, 2)), "Expect: 100-continue")
        end = request.index(b"\r\n\r\n") + 4
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(request[:end])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(request[end:])
        assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_client_that_leaves_in_the_middle_of_its_body_harms_nobody() -> None:
    async with serving() as served:
        _, leaver = await asyncio.open_connection("127.0.0.1", served.port)
        leaver.write(post(body((1, 2)))[:-5])
        await leaver.drain()
        leaver.transport.abort()
        ((head, _),) = await exchange(served.port, [post(body((1, 2)))], 1)
        assert head.startswith(b"HTTP/1.1 200")
        assert served.service.batcher.rows.offered == 1


@pytest.mark.parametrize("hosted", [False, True], ids=["no app", "batcher on another loop"])
async def test_without_an_app_on_this_loop_everything_goes_to_asgi(hosted: bool) -> None:
    async with serving() as served:
        assert InferenceProtocol.hosted is not None
        InferenceProtocol.hosted.loop = mock.Mock()
        if not hosted:
            InferenceProtocol.hosted = None
        ((head, _),) = await exchange(served.port, [post(body((1, 2)))], 1)
        assert head.startswith(b"HTTP/1.1 200")
        assert served.asgi_paths == [INFER]


class Loop:
    """A loop of which the protocol uses the clock and the timers."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, partial[None]]] = []
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(
        self, delay_s: float, callback: Callable[..., None], *args: Any
    ) -> asyncio.Handle:
        timer = (self.now_s + delay_s, partial(callback, *args))
        self.timers.append(timer)
        return cast(asyncio.Handle, mock.Mock(cancel=partial(self._cancel, timer)))

    def _cancel(self, timer: tuple[float, partial[None]]) -> None:
        if timer in self.timers:
            self.timers.remove(timer)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def end_iteration(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def pass_time(self, seconds: float) -> None:
        self.end_iteration()
        self.now_s += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now_s]
        self.timers = [timer for timer in self.timers if timer[0] > self.now_s]
        for _, callback in due:
            callback()


@pytest.fixture
async def connected() -> AsyncIterator[tuple[InferenceProtocol, mock.Mock, Loop]]:
    """A connection on a stand-in for the transport and the loop, to a replica that drains."""
    async with make_service() as service:
        service.batcher.core.drain()
        app = InferenceApp(service, "1")
        loop = Loop()
        config = uvicorn.Config(app, access_log=False, log_config=None, timeout_keep_alive=5)
        protocol = InferenceProtocol(config, ServerState(), {}, _loop=cast(Any, loop))
        InferenceProtocol.hosted = HostedApp(app, cast(Any, loop))
        transport = mock.Mock()
        transport.is_closing.return_value = False
        transport.get_write_buffer_size.return_value = 0
        transport.get_extra_info.return_value = None
        protocol.connection_made(transport)
        yield protocol, transport, loop
        InferenceProtocol.hosted = None


async def test_answers_to_a_client_that_does_not_read_are_not_piled_up(
    connected: tuple[InferenceProtocol, mock.Mock, Loop],
) -> None:
    protocol, transport, loop = connected
    request = post(body((1, 2)))
    protocol.data_received(request)
    loop.end_iteration()
    protocol.pause_writing()
    protocol.data_received(request * 2)
    loop.end_iteration()
    assert transport.write.call_count == 1
    transport.pause_reading.assert_called_once()
    protocol.resume_writing()
    loop.end_iteration()
    assert transport.write.call_count == 3
    assert transport.resume_reading.call_count == transport.pause_reading.call_count


async def test_a_client_that_reads_nothing_of_its_answer_is_left(
    connected: tuple[InferenceProtocol, mock.Mock, Loop],
) -> None:
    protocol, transport, loop = connected
    transport.get_write_buffer_size.return_value = 90_000
    protocol.pause_writing()
    for unread_bytes in (80_000, 70_000):
        transport.get_write_buffer_size.return_value = unread_bytes
        loop.pass_time(READ_TIMEOUT_S)
        transport.abort.assert_not_called()
    protocol.resume_writing()
    loop.pass_time(READ_TIMEOUT_S)
    protocol.pause_writing()
    transport.abort.assert_not_called()
    loop.pass_time(READ_TIMEOUT_S)
    transport.abort.assert_called_once()


async def test_a_client_that_never_reads_its_small_answers_is_left(
    connected: tuple[InferenceProtocol, mock.Mock, Loop],
) -> None:
    """Pipelined requests whose answers fill no buffer held a connection for ever."""
    protocol, transport, loop = connected
    protocol.data_received(post(body((1, 2))) * 3)
    transport.get_write_buffer_size.return_value = 900
    loop.pass_time(5)
    transport.close.assert_called()
    loop.pass_time(READ_TIMEOUT_S)
    transport.abort.assert_called()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), max_size=20))
def test_unread_answers_are_bounded_and_the_slowest_reader_goes_first(
    steps: list[tuple[int, int]],
) -> None:
    now_s = 0.0
    unread, waiting, broken_off = UnreadAnswers(100, lambda: now_s), dict[int, int](), 0
    transports = [mock.Mock() for _ in range(5)]
    for client, size in steps:
        transports[client].get_write_buffer_size.return_value = size
        waiting.pop(client, None)
        if size == 0:
            unread.remove(transports[client])
            continue
        waiting[client] = size
        unread.add(transports[client])
        while sum(waiting.values()) > 100:
            slowest = next(iter(waiting))
            del waiting[slowest]
            transports[slowest].abort.assert_called()
            broken_off += 1
        assert len(unread) == len(waiting) + broken_off
    now_s = 2 * HELD_BY_HAPROXY_S
    assert len(unread) == len(waiting)


@pytest.mark.parametrize("http", [HttpToolsProtocol, InferenceProtocol])
async def test_clients_that_still_read_their_answers_are_no_load(
    http: type[asyncio.Protocol],
) -> None:
    """90 slow readers of 4 MB each made an idle replica refuse."""
    async with serving(http) as served:
        assert InferenceProtocol.hosted is not None
        app = InferenceProtocol.hosted.app
        slow = mock.Mock()
        slow.get_write_buffer_size.return_value = 1 << 20
        app.unread_answers.add(slow)
        with fixed_concurrency(served.service.batcher.core, 9):
            ((head, _),) = await exchange(served.port, [post(body((1, 2)))], 1)
            assert b"\r\n%b: 10\r\n" % LIMIT_HEADER in head
            app.unread_answers.remove(slow)
            ((head, _),) = await exchange(served.port, [post(body((1, 2)))], 1)
            assert b"\r\n%b: 9\r\n" % LIMIT_HEADER in head
            assert app.limit(SOCKET_BYTES + 1) == 10, "a large answer is about to be read"


async def test_a_refused_client_cannot_try_again_in_the_same_iteration(
    connected: tuple[InferenceProtocol, mock.Mock, Loop],
) -> None:
    """Otherwise the poll would not return while clients try again, and no batch would start."""
    protocol, transport, loop = connected
    protocol.data_received(post(body((1, 2))))
    transport.write.assert_not_called()
    loop.end_iteration()
    assert transport.write.call_args.args[0].startswith(b"HTTP/1.1 503")


async def test_nothing_is_written_to_a_client_that_left(
    connected: tuple[InferenceProtocol, mock.Mock, Loop],
) -> None:
    protocol, transport, loop = connected
    protocol.data_received(post(body((1, 2))))
    protocol.connection_lost(None)
    loop.end_iteration()
    transport.write.assert_not_called()


async def test_an_idle_connection_is_closed_after_the_keep_alive_timeout(
    connected: tuple[InferenceProtocol, mock.Mock, Loop],
) -> None:
    protocol, transport, loop = connected
    for _ in range(4):
        protocol.data_received(post(body((1, 2))))
        loop.pass_time(4)
        assert len(loop.timers) == 1, "one timer for all requests of a connection"
        transport.close.assert_not_called()
    loop.pass_time(1)
    transport.close.assert_called_once()


async def test_empty_lines_do_not_keep_a_connection_open(
    connected: tuple[InferenceProtocol, mock.Mock, Loop],
) -> None:
    protocol, transport, loop = connected
    for _ in range(2):
        protocol.data_received(b"\r\n")
        loop.pass_time(2)
    transport.close.assert_not_called()
    protocol.data_received(b"\r\n")
    loop.pass_time(2)
    transport.close.assert_called()


async def test_a_stopping_server_closes_idle_connections_and_answers_what_it_is_reading(
    connected: tuple[InferenceProtocol, mock.Mock, Loop],
) -> None:
    protocol, transport, loop = connected
    request = post(body((1, 2)))
    protocol.data_received(request[:-9])
    protocol.shutdown()
    transport.close.assert_not_called()
    protocol.data_received(request[-9:])
    loop.end_iteration()
    assert b"\r\nconnection: close\r\n" in transport.write.call_args.args[0]
    transport.close.assert_called_once()
    protocol.shutdown()
    assert transport.close.call_count == 2


async def test_the_senders_own_pauses_do_not_count_as_waiting(
    connected: tuple[InferenceProtocol, mock.Mock, Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what comes between two reads, only the time in which the rest could be read counts."""
    protocol, _, _ = connected
    assert InferenceProtocol.hosted is not None
    meter = InferenceProtocol.hosted.app.service.event_loop_meter
    reads = iter([(10.0, 9.5), (12.0, 11.25), (13.0, 11.5)])  # when read, since when readable
    present: list[tuple[float, float]] = []

    def monotonic() -> float:
        present[:] = [next(reads)]
        return present[0][0]

    monkeypatch.setattr("deployments.http.protocol.time", mock.Mock(monotonic=monotonic))
    monkeypatch.setattr(meter, "readable_since_s", lambda now_s: present[0][1])
    monkeypatch.setattr(protocol, "_admit", lambda *_: True)
    seen: list[float] = []
    monkeypatch.setattr(protocol, "_submit", lambda body: seen.append(protocol._arrival_s))
    request = post(body((1, 2)))
    for piece in (request[:-9], request[-9:-5], request[-5:]):
        protocol.data_received(piece)
    # Between 10 and 11.25 the sender paused; at 12 the rest had been readable since 11.5.
    assert seen == [9.5 + 1.25]


@pytest.mark.parametrize("short", [True, False], ids=["short way", "asgi"])
async def test_a_request_arrives_when_it_could_first_have_been_read(
    monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    """While the loop is kept busy for 30 ms, a request waits in its socket."""
    async with serving() as served:
        arrivals: list[float] = []
        infer_nowait = served.service.infer_nowait

        def recording(request: InferenceRequest, arrival_s: float, *rest: Any) -> Any:
            arrivals.append(time.monotonic() - arrival_s)
            return infer_nowait(request, arrival_s, *rest)

        monkeypatch.setattr(served.service, "infer_nowait", recording)
        path = INFER if short else INFER + "/"
        busy = socket.create_connection(("127.0.0.1", served.port))
        waiting = socket.create_connection(("127.0.0.1", served.port))
        with busy, waiting:
            await exchange(served.port, [post(body((1, 2)))], 1)
            busy.sendall(post(body((1, 2)), path=path))
            admit = served.service.admit

            def slowly(*args: Any) -> Refusal | None:
                monkeypatch.setattr(served.service, "admit", admit)
                waiting.sendall(post(body((3, 4)), path=path))
                time.sleep(0.03)
                return admit(*args)

            monkeypatch.setattr(served.service, "admit", slowly)
            while len(arrivals) < 3:
                await asyncio.sleep(0)
        assert arrivals[2] >= 0.03
        assert len(served.asgi_paths) == (0 if short else 2)


async def test_a_body_of_many_reads_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of 600 KB, say; read in several parts."""
    async with serving() as served:
        monkeypatch.setattr(served.service, "max_body_bytes", 700_000)
        content = json.dumps(body((1, 2))).encode()
        request = post(content + b" " * (600_000 - len(content)))
        for _ in range(3):
            ((head, answer),) = await exchange(served.port, [request], 1)
            assert head.startswith(b"HTTP/1.1 200")
            assert b'"data":[2.0,4.0]' in answer
        ((head, _),) = await exchange(served.port, [post(b" " * 700_001)], 1)
        assert head.startswith(b"HTTP/1.1 413")
        assert served.asgi_paths == [INFER], "only the one that is too large"
