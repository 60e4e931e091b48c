import asyncio
import contextlib
import gzip
import itertools
import json
import re
import socket
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deployments.haproxy.refusals import FINAL_STATUS, LIMIT_HEADER, ONLY_REPLICA_HEADER
from deployments.http.app import SOCKET_BYTES, InferenceApp
from deployments.http.protocol import InferenceProtocol
from deployments.http.unread_answers import HELD_BY_HAPROXY_S, UnreadAnswers
from deployments.observability.request_info import RequestInfo
from deployments.serving.service import InferenceService
from policy.batcher.requests import Refusal
from tests.support.http.raw_requests import GZIP, INFER, exchange, post
from tests.support.models.doubles_service import Doubles, body, hosting, listening, make_service

BOTH = HttpToolsProtocol, InferenceProtocol
PATHS = pytest.mark.parametrize("path", [INFER, INFER + "/"], ids=["short way", "asgi"])
_MADE_ID = re.compile(rb"(?<=^x-request-id: )[0-9a-f]{16}-[0-9a-f]+")


@dataclass
class Served:
    service: InferenceService
    model: Doubles
    port: int
    asgi_paths: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def serving(http=InferenceProtocol):
    model = Doubles()
    async with make_service(model) as service:
        app = InferenceApp(service, "1")
        served = Served(service, model, 0)

        async def recorder(scope, receive, send):
            served.asgi_paths.append(scope["path"])
            await app(scope, receive, send)

        with hosting(app):
            async with listening(recorder, http) as (_, served.port):
                yield served


def chunked(content):
    data = json.dumps(content).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:9], data[9:])]
    return head.encode() + b"".join(parts) + b"0\r\n\r\n"


def normal(answer):
    """Return the status line, the sorted header lines but the date, and the body.

    Of a request id that the server made only the name is left.
    """
    status, *lines = answer[0].strip().split(b"\r\n")
    kept = [_MADE_ID.sub(b"", line) for line in lines if not line.startswith(b"date:")]
    return status, sorted(kept), answer[1]


ONE = body((1, 2))
BINARY = (
    b'{"parameters":{"binary_data_output":true},"inputs":[{"name":"x","datatype":"FP32",'
    b'"shape":[1,2],"parameters":{"binary_data_size":8}}]}'
)
#: Requests by what is special about them.
SHORT_WAY = {
    "one row": post(ONE),
    "several rows": post(body((1, 2), (3, 4), id="mine")),
    "with an id": post(ONE, "x-request-id: abc"),
    "with another spelling": post(ONE, "X-Request-ID: abc"),
    "with headers": post(ONE, "X-Request-Priority: 1", "Accept: */*"),
    "binary": post(BINARY + b"\0" * 8, f"Inference-Header-Content-Length: {len(BINARY)}"),
    "no JSON": post(b"nothing"),
    "empty": post(b""),
    "wrong input": post({"inputs": []}),
    "too many rows": post(body(*[(0, 0)] * 7)),
    "failing model": post(body((13, 13))),
    "late before it starts": post(ONE, "X-Request-Timeout-Ms: 0.001"),
}
OVER_ASGI = {
    "wrong deadline": post(ONE, "X-Request-Timeout-Ms: x"),
    "two deadlines": post(ONE, "X-Request-Timeout-Ms: 5", "X-Request-Timeout-Ms: 6"),
    "body too large": post(b" " * 2001),
    "compressed": post(gzip.compress(b"{}"), GZIP),
    "unknown encoding": post(b"", "Content-Encoding: br"),
    "chunked": chunked(body((5, 6))),
    "other path": post(ONE, path="/v2/models/other/infer"),
    "version": post(ONE, path="/v2/models/doubles/versions/1/infer"),
    "query": post(ONE, path=INFER + "?x=1"),
    "metadata": b"GET /v2/models/doubles HTTP/1.1\r\nHost: x\r\n\r\n",
    "wrong method": f"GET {INFER} HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    "stays open no longer": post(ONE, "Connection: close"),
}


async def test_every_answer_is_uvicorns_own_and_counted_by_its_status(caplog):
    answers, counts = defaultdict(list), []
    caplog.set_level("CRITICAL")
    for http in BOTH:
        async with serving(http) as served:
            for name, request in (SHORT_WAY | OVER_ASGI).items():
                served.asgi_paths.clear()
                (answer,) = await exchange(served.port, request)
                answers[name].append(normal(answer))
                if http is InferenceProtocol:
                    assert bool(served.asgi_paths) == (name in OVER_ASGI), name
        counts.append(served.service.answers)
    for name, (theirs, ours) in answers.items():
        assert ours == theirs, name
    statuses = Counter(int(status.split()[1]) for (status, *_), _ in answers.values())
    assert {400, 404, 405, 413, 415, 500, 504} < statuses.keys()
    late = statuses.pop(504)
    expected = {(504, "deadline"): late, **{(one, ""): n for one, n in statuses.items()}}
    assert counts == [expected, expected]


async def test_an_offer_of_another_protocol_is_ignored():
    """Java's client, and `curl --http2`, make one with a request; uvicorn skips its body."""
    offer = "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"
    async with serving() as served:
        answers = await exchange(served.port, post(ONE, *offer) * 2, answers=2)
        assert [head[:12] for head, _ in answers] == 2 * [b"HTTP/1.1 200"]
        # Elsewhere, what the parser takes for the next request is not waited for.
        ((head, content),) = await exchange(served.port, post(ONE, *offer, path=INFER + "/"))
        assert head.startswith(b"HTTP/1.1 400")
        assert b"must not ask for an upgrade" in content
        get = b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        assert (await exchange(served.port, get))[0][0].startswith(b"HTTP/1.1 200")


async def test_a_full_replica_refuses_as_over_uvicorn():
    """If no other replica can be asked, by a status that HAProxy does not try again."""
    answers = []
    lines = "x-request-id: abc", f"{ONLY_REPLICA_HEADER.decode()}: 1"
    for http in BOTH:
        async with serving(http) as served:
            answers += await exchange(served.port, post({"id": "x"}, *lines))
            served.service.batcher.core.drain()
            for request in (post(ONE, *lines), post(body((1, 2), (3, 4)), lines[0])):
                answers += await exchange(served.port, request)
            rows = served.service.batcher.rows
            assert (rows.offered, rows.refused) == (3, 3)
            # What clients are told is what is counted.
            assert served.service.answers == {(400, ""): 1, (503, "queue_full"): 2}
    assert [*map(normal, answers[:3])] == [*map(normal, answers[3:])]
    assert [int(head.split()[1]) for head, _ in answers[:3]] == [400, FINAL_STATUS, 503]
    assert b"\r\nx-sojourn-reason: queue_full\r\nretry-after: 1\r\n" in answers[-1][0]


@PATHS
async def test_outputs_that_cannot_be_sent_are_no_answer_in_time(monkeypatch, path):
    """A model that returned NaN alone kept its SLA, by the counts, though all clients had 500."""
    async with serving() as served:
        await exchange(served.port, post(ONE, path=path))
        nan = {"y": np.full((1, 2), np.nan, np.float32)}
        monkeypatch.setattr(served.model, "forward", lambda _: nan)
        ((head, _),) = await exchange(served.port, post(ONE, path=path))
        assert head.startswith(b"HTTP/1.1 500")
        assert served.service.autoscaling_stats()["answered_total"] == 1


@PATHS
async def test_an_internal_error_reveals_nothing_and_counts_as_a_failed_request(
    monkeypatch, caplog, path
):
    async with serving() as served:
        monkeypatch.setattr(served.service, "admit", lambda *_: 1 / 0)
        ((head, content),) = await exchange(served.port, post(ONE, path=path))
        assert head.startswith(b"HTTP/1.1 500")
        assert json.loads(content) == {"error": "internal error while answering this request"}
        assert "ZeroDivisionError" in caplog.text
        totals = InferenceProtocol.hosted.app.outcomes.totals.describe(
            "m", "1", served.service.batch_totals
        )
        assert totals["inference_stats"]["fail"]["count"] == 1


async def test_all_that_one_iteration_of_the_loop_rejects_is_counted():
    async with serving() as served:
        hosted = InferenceProtocol.hosted
        for refusal in (Refusal.FULL, *3 * [Refusal.EXPIRED]):
            hosted.rejections.add(refusal, time.monotonic(), 2, RequestInfo(b"id"))
        await asyncio.sleep(0)
        assert served.service.answers == {(503, "queue_full"): 1, (504, "deadline"): 3}
        totals = hosted.app.outcomes.totals.describe("m", "1", served.service.batch_totals)
        assert totals["inference_stats"]["fail"]["count"] == 4
        assert served.service.batcher.rows.offered == 8
        assert served.service.event_loop_meter.refused == 4


@contextlib.contextmanager
def fixed_concurrency(core, concurrency):
    """Limit the concurrency, whatever limits the solver or a tick puts in force."""
    use = core.use

    def use_fixed(table, limits):
        use(table, replace(limits, concurrency=concurrency))

    with mock.patch.object(core, "use", use_fixed):
        core.use(core.table, core.limits)
        yield


@pytest.mark.parametrize("http", BOTH)
async def test_each_haproxy_is_told_how_many_to_send(http):
    """Headers change neither that nor the load, and clients that still read answers are no load.

    90 slow readers of 4 MB each made an idle replica refuse.
    """
    async with serving(http) as served:
        app = InferenceProtocol.hosted.app

        async def limit(*lines):
            ((head, _),) = await exchange(served.port, post(ONE, *lines))
            return int(re.search(rb"\r\n%b: (\d+)\r\n" % LIMIT_HEADER, head)[1])

        names = ("refused-before", "balancer", "only-replica", "sent-us", "concurrency-limit")
        slow = mock.Mock(**{"get_write_buffer_size.return_value": 1 << 20})
        with fixed_concurrency(served.service.batcher.core, 40):
            assert await limit(*(f"x-sojourn-{name}: 999999999" for name in names)) == 40
            app.unread_answers.add(slow, 1 << 30)
            assert await limit() == 41
            app.unread_answers.remove(slow)
            assert await limit() == 40
            assert app.limit(SOCKET_BYTES + 1) == 41, "a large answer is about to be read"
            app.haproxies.nodes = frozenset({"192.0.2.7", "192.0.2.8"})
            for peer in ("192.0.2.7", "192.0.2.8", "192.0.2.9", None):
                app.haproxies.connected(peer)
            assert await limit() == 20
        stats = served.service.autoscaling_stats()
        assert (stats["offered_total"], stats["refused_total"]) == (4, 0)


def mixed_stream():
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


async def test_pipelined_requests_are_answered_in_order_however_they_are_cut():
    random = np.random.default_rng(5)
    async with serving() as served:
        for cuts in range(25):
            places = np.sort(random.choice(np.arange(1, len(STREAM)), cuts, replace=False)).tolist()
            pieces = [STREAM[i:j] for i, j in itertools.pairwise([0, *places, len(STREAM)])]
            answers = await exchange(served.port, *pieces, answers=len(EXPECTED))
            for (head, content), (status, part) in zip(answers, EXPECTED, strict=True):
                assert head.startswith(b"HTTP/1.1 " + status), places
                assert part in content, places
        assert served.service.answers == {(200, ""): 25 * 12, (400, ""): 25 * 4}


async def test_without_a_hosted_app_everything_goes_to_asgi():
    async with serving() as served:
        InferenceProtocol.hosted = None
        ((head, _),) = await exchange(served.port, post(ONE))
        assert head.startswith(b"HTTP/1.1 200")
        assert served.asgi_paths == [INFER]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), max_size=20))
def test_unread_answers_are_bounded_and_the_slowest_reader_goes_first(steps):
    now_s = 0.0
    unread, waiting, broken_off = UnreadAnswers(lambda: now_s), dict[int, int](), 0
    transports = [mock.Mock(["get_write_buffer_size", "abort"]) for _ in range(5)]
    for client, size in steps:
        transports[client].get_write_buffer_size.return_value = size
        waiting.pop(client, None)
        if size == 0:
            unread.remove(transports[client])
            continue
        waiting[client] = size
        unread.add(transports[client], 100)
        while sum(waiting.values()) > 100:
            slowest = next(iter(waiting))
            del waiting[slowest]
            transports[slowest].abort.assert_called()
            broken_off += 1
        assert len(unread) == len(waiting) + broken_off
    now_s = 2 * HELD_BY_HAPROXY_S
    assert len(unread) == len(waiting)


@PATHS
async def test_a_request_arrives_when_it_could_first_have_been_read(monkeypatch, path):
    """While the loop is kept busy for 30 ms, a request waits in its socket."""
    async with serving() as served:
        arrivals = []
        infer_nowait = served.service.infer_nowait

        def recording(request, arrival_s, *rest):
            arrivals.append(time.monotonic() - arrival_s)
            return infer_nowait(request, arrival_s, *rest)

        monkeypatch.setattr(served.service, "infer_nowait", recording)
        busy = socket.create_connection(("127.0.0.1", served.port))
        waiting = socket.create_connection(("127.0.0.1", served.port))
        with busy, waiting:
            await exchange(served.port, post(ONE))
            busy.sendall(post(ONE, path=path))
            admit = served.service.admit

            def slowly(*args):
                monkeypatch.setattr(served.service, "admit", admit)
                waiting.sendall(post(body((3, 4)), path=path))
                time.sleep(0.03)
                return admit(*args)

            monkeypatch.setattr(served.service, "admit", slowly)
            while len(arrivals) < 3:
                await asyncio.sleep(0)
        assert arrivals[2] >= 0.03
        assert len(served.asgi_paths) == (0 if path == INFER else 2)


async def test_a_body_of_many_reads_takes_the_short_way(monkeypatch):
    async with serving() as served:
        monkeypatch.setattr(served.service, "max_body_bytes", 700_000)
        request = post(json.dumps(ONE).encode().ljust(600_000))
        ((head, _),) = await exchange(served.port, request)
        assert head.startswith(b"HTTP/1.1 200")
        assert not served.asgi_paths
