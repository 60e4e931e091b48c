import asyncio
import contextlib
import gzip
import json
import logging
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.errors import BusyError
from deployments.http.app import InferenceApp
from deployments.http.protocol import InferenceProtocol
from deployments.http.request_body import SMALL_BODY_BYTES, BodyBudget, Reservation
from deployments.http.request_head import MAX_FIELDS, MAX_HEAD_BYTES
from deployments.http.service import Service
from deployments.http.signature import MAX_JSON_BYTES
from tests.support.http.raw_requests import GZIP, INFER, post, read_json
from tests.support.models.doubles_service import body, hosting, listening
from tests.support.waiting import until


@pytest.fixture
async def connect(service):
    """Opens a connection to a server with that service."""
    service.max_body_bytes = 1 << 20
    app = InferenceApp(service, "1")

    @contextlib.asynccontextmanager
    async def opened():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    with hosting(app):
        async with listening(app, InferenceProtocol) as (_, port):
            yield opened


GOOD = post(body((1, 2)))


async def test_a_body_that_does_not_arrive_in_time_is_answered_408(service, connect):
    """Over ASGI, it was counted as an answer of 400, too."""
    service.receive_timeout_s = 0.1
    for request in (post(b"{", length=500_000), post(b"x", GZIP, length=500_000)):
        async with connect() as (reader, writer):
            writer.write(request)
            late = {"error": "the request must arrive within 0.1 s"}
            assert await read_json(reader) == (408, late)
            assert await reader.read() == b""
    await until(lambda: not service.bodies.used_bytes)
    assert service.answers == {(408, ""): 2}


@pytest.mark.parametrize("lines", [(), (GZIP,)], ids=["short way", "asgi"])
async def test_a_client_that_leaves_before_its_body_has_come_gets_no_answer(
    service, connect, lines, caplog
):
    """Over ASGI, one of 400 was counted and logged."""
    caplog.set_level("INFO")
    async with connect() as (_, writer):
        writer.write(post(b"{" * 100_000, *lines, length=500_000))
        await until(lambda: service.bodies.used_bytes)
    await until(lambda: not service.bodies.used_bytes)
    assert (service.answers, caplog.messages) == ({}, [])


@pytest.mark.parametrize(
    "fields",
    [
        "".join(f"a{number}: b\r\n" for number in range(MAX_FIELDS + 1)),
        "a: " + "b" * MAX_HEAD_BYTES,
        "x-request-id: " + "b" * (8 << 20),
    ],
    ids=["a field too many", "a byte too many", "an id of 8 MB"],
)
async def test_a_head_that_is_too_large_is_answered_431(connect, fields):
    async with connect() as (reader, writer):
        writer.write(f"POST {INFER} HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n".encode())
        status, content = await read_json(reader)
    problem = "the head of a request may have at most 65536 bytes and 256 fields"
    assert (status, content) == (431, {"error": problem})


@pytest.mark.parametrize("endless", [b"0\r\nx: ", b"1;x="], ids=["trailer", "chunk extension"])
async def test_what_never_ends_between_chunks_is_ended_soon(connect, endless):
    """16 MB of a trailer took 2.3 s of the event loop."""
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with connect() as (reader, writer):
        writer.write(head.encode() + endless)
        answering = asyncio.create_task(read_json(reader))
        sent = 0
        while not answering.done() and sent < 16 << 20:
            writer.write(b"A" * (64 << 10))
            sent += 64 << 10
            await writer.drain()
        assert (await answering)[0] == 431
        assert sent < 8 << 20


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"hello\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_answered_400_in_json(service, connect, garbage):
    async with connect() as (reader, writer):
        writer.write(garbage)
        status, content = await read_json(reader)
        assert (status, list(content)) == (400, ["error"])
        assert await reader.read() == b""
    assert service.answers == {(400, ""): 1}


@pytest.mark.parametrize("garbage", [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nHo"])
async def test_what_comes_before_garbage_is_answered_and_nothing_else(service, connect, garbage):
    """The garbage got its answer first, and the request's own was counted, but not sent."""
    service.receive_timeout_s = 0.1
    async with connect() as (reader, writer):
        writer.write(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n" * 2 + garbage)
        statuses = [(await read_json(reader))[0] for _ in range(2)]
        rest = await reader.read()
    assert statuses == [200, 200]
    told = Counter(dict(service.answers))
    assert told == {(200, ""): 2} | ({(408, ""): 1} if b" 408 " in rest else {})


async def test_what_follows_garbage_is_thrown_away_and_not_logged(
    service, connect, caplog, monkeypatch
):
    """Each further byte was logged for as long as the request before the garbage took."""
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "propagate", True)
    caplog.set_level(logging.WARNING, "uvicorn.error")
    service._model.gate.clear()
    content = json.dumps(body((1, 2))).encode()
    async with connect() as (reader, writer):
        writer.write(
            b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()
        )
        writer.write(b"%x\r\n%s\r\n0\r\n\r\nhello\r\n\r\n" % (len(content), content))
        for _ in range(20):
            await asyncio.sleep(0.001)
            writer.write(b"x")
        service._model.gate.set()
        assert (await read_json(reader))[0] == 200
        assert await reader.read() == b""
    assert [record.message for record in caplog.records] == ["Invalid HTTP request received."]


async def test_a_stream_ends_with_its_client_also_if_requests_wait_behind_it(connect):
    """It went on for ever: sixteen of them closed the console, and the server could not stop."""
    console = InferenceProtocol.hosted.app.console
    async with connect() as (reader, writer):
        writer.write(b"GET /sojourn/events HTTP/1.1\r\nHost: x\r\n\r\n" + GOOD)
        await reader.readuntil(b"data: ")
        assert console.streams == 1
    await until(lambda: console.streams == 0)


async def test_a_body_that_is_only_announced_takes_no_room(service, connect):
    """16 clients that announced 4 MB, and sent a byte, had all others refused for 30 s."""
    service.bodies.limit_bytes = 600_000
    async with contextlib.AsyncExitStack() as stack:
        for lines in ((), (GZIP,)) * 8:
            _, idle = await stack.enter_async_context(connect())
            idle.write(post(b"{", *lines, length=500_000))
        reader, writer = await stack.enter_async_context(connect())
        for request in (GOOD, post(b" " * 500_000)):
            writer.write(request)
            assert (await read_json(reader))[0] in (200, 400)
        assert service.bodies.used_bytes == 0


async def test_bodies_beyond_the_budget_are_refused_as_they_arrive(service, connect):
    """The first connection holds most of the budget, until it ends."""
    service.bodies.limit_bytes = 600_000
    async with connect() as (_, holding):
        holding.write(post(b"{" * 500_000, length=500_001))
        await until(lambda: service.bodies.used_bytes >= 500_000)
        for lines in ((), (GZIP,)):
            async with connect() as (reader, writer):
                writer.write(post(b"{" * 150_000, *lines, length=200_000))
                status, _ = await read_json(reader)
                assert status == 503
                assert service.bodies.used_bytes == 500_000
                # The connection is of use once the rest of the body has come.
                writer.write(b" " * 50_000 + GOOD)
                assert (await read_json(reader))[0] == 200
        assert service.batcher.rows.refused == 2
        assert service.answers == {(503, "memory"): 2, (200, ""): 2}
    await until(lambda: not service.bodies.used_bytes)


@pytest.mark.parametrize("gzipped", [False, True], ids=["short way", "asgi"])
async def test_large_requests_are_refused_if_wrong_and_their_json_has_a_limit(
    service, connect, gzipped
):
    def large(content, *lines):
        return post(gzip.compress(content, 1), GZIP, *lines) if gzipped else post(content, *lines)

    service.max_body_bytes = 16 << 20
    right = json.dumps(body((1, 2))).encode().ljust(100_000)
    too_long = np.random.default_rng(0).bytes(MAX_JSON_BYTES // 2 + 1).hex().encode()
    length = f"Inference-Header-Content-Length: {len(right)}"
    async with connect() as (reader, writer):
        for request, status in (
            (large(right + b"nonsense"), 400),
            (large(right.replace(b"[1, 2]", b"[1 2]")), 400),
            (large(right.replace(b"[1, 2]", b"[1]")), 400),
            (large(right + too_long, length), 400),  # it may be longer with binary data
            (large(right) * 2, 200),
            (b"", 200),
            (large(too_long), 413),
        ):
            writer.write(request)
            assert (await read_json(reader))[0] == status
    assert service.bodies.used_bytes == 0


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.integers(0, 60)), max_size=20),
    st.data(),
)
def test_the_budget_is_kept_and_given_back(bodies, data):
    """A single body is always let in, of all and of a token; small ones are free."""
    budget, unit = BodyBudget(100 << 12), 1 << 12
    held: list[Any] = []
    for token, units in bodies:
        reservation = Reservation(budget, token)
        size = units * unit
        counted = size if size > SMALL_BODY_BYTES else 0
        used = sum(one for _, _, one in held)
        of_token = sum(one for _, other, one in held if other == token)
        fits = not used or used + counted <= 100 * unit
        fits &= token is None or not of_token or of_token + counted <= 50 * unit
        if fits or not counted:
            reservation.grow_to(size // 2)
            reservation.grow_to(size)
            held.append((reservation, token, counted))
        else:
            with pytest.raises(BusyError):
                reservation.grow_to(size)
        if held and data.draw(st.booleans()):
            held.pop(data.draw(st.integers(0, len(held) - 1)))[0].release()
        assert budget.used_bytes == sum(one for _, _, one in held)


async def test_limits_hold_without_an_app(monkeypatch):
    """Ray's own requests come over the same protocol."""
    monkeypatch.setattr(Service, "receive_timeout_s", 0.05)
    assert InferenceProtocol.hosted is None
    async with listening(lambda *_: None, InferenceProtocol) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET ")
        assert (await read_json(reader))[0] == 408
        writer.close()
