"""Since when a request waited in its socket, by the kernel and by the event loop."""

import asyncio
import os
import socket
import time
from unittest import mock

import pytest

from deployments.http.arrival_times import RESOLUTION_S, SocketWait
from deployments.http.protocol import InferenceProtocol
from tests.support.waiting import LIMIT_S

#: The kernel's clock ticks every 10 ms at most.
TICK_S = 0.011
READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"


class _Paused(asyncio.Protocol):
    """Reads nothing."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()


async def test_the_kernel_says_how_long_ago_data_arrived() -> None:
    loop = asyncio.get_running_loop()
    accepted = _Paused()
    server = await loop.create_server(lambda: accepted, "127.0.0.1", 0)
    client, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
    before_s = time.monotonic()
    client.write(b"x")
    try:
        wait = SocketWait(accepted.transport)
        async with asyncio.timeout(LIMIT_S):
            while (wait.waited_s() or 0.0) < 0.1:
                await asyncio.sleep(0.005)
        assert (wait.waited_s() or 0.0) <= time.monotonic() - before_s + TICK_S
        again_s = time.monotonic()
        client.write(b"x")
        await asyncio.sleep(0)
        assert (wait.waited_s() or 0.0) <= time.monotonic() - again_s + TICK_S
        # The descriptor still belongs to the transport.
        del wait
        assert os.fstat(accepted.transport.get_extra_info("socket").fileno())
    finally:
        client.close()
        accepted.transport.close()
        server.close()
        await server.wait_closed()


def test_a_transport_that_is_not_tcp_tells_nothing() -> None:
    transport = mock.Mock()
    transport.get_extra_info.return_value = None
    assert SocketWait(transport).waited_s() is None
    one, other = socket.socketpair()
    with one, other:
        transport.get_extra_info.return_value = one
        assert SocketWait(transport).waited_s() is None
        other.sendall(b"x")
        assert one.recv(1) == b"x"


def test_haproxy_says_when_it_sent_what_comes_over_a_unix_socket() -> None:
    transport = mock.Mock()
    one, other = socket.socketpair()
    with one, other, mock.patch.object(time, "time", return_value=1000.25):
        transport.get_extra_info.return_value = one
        wait = SocketWait(transport)
        assert wait.is_unix
        assert wait.waited_s(sent_us=1000_000_000) == pytest.approx(0.25)
        # Its clock was set back since.
        assert wait.waited_s(sent_us=1001_000_000) == 0
        assert wait.waited_s(sent_us=0) is None


@pytest.mark.parametrize(
    ("connected_s", "sent_s", "expected_s"),
    [
        pytest.param(0.3, 0.2, (0.2, 0.1), id="it waited to be accepted"),
        pytest.param(0.0, 0.2, (0.1, 0.1), id="its first replica died: no wait here"),
        pytest.param(0.3, 0.04, (0.1, 0.04), id="the loop's bound is too long"),
        pytest.param(0.3, None, (0.1, 0.1), id="it did not come from HAProxy"),
    ],
)
def test_a_request_over_a_unix_socket_arrived_when_haproxy_sent_it(
    connected_s: float, sent_s: float | None, expected_s: tuple[float, float]
) -> None:
    """The first and a later request of a connection, where the loop's bound is 0.1 s."""
    now_s, of_day_s = 50.0, 1000.0
    one, other = socket.socketpair()
    transport = mock.Mock()
    transport.get_extra_info.return_value = one
    connection = mock.Mock(transport=transport, _socket_wait=None)
    connection._connected_since_s = now_s - connected_s
    sent_us = 0 if sent_s is None else round(1e6 * (of_day_s - sent_s))
    with one, other, mock.patch.object(time, "time", return_value=of_day_s):
        found = [
            now_s - InferenceProtocol._readable_since_s(connection, now_s, now_s - 0.1, sent_us)
            for _ in range(2)
        ]
    assert found == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("sent_s", "expected_s"),
    [
        pytest.param(0.0005, 0.0005, id="the loop began its iteration before"),
        pytest.param(0.2, 0.002, id="it waited elsewhere"),
        pytest.param(None, 0.002, id="it did not come from HAProxy"),
    ],
)
def test_haproxy_is_asked_for_short_waits_too(sent_s: float | None, expected_s: float) -> None:
    """At 6,000/s the loop's bound made half of the answers 1.8 ms old where clients saw 1.2."""
    now_s, of_day_s = 50.0, 1000.0
    one, other = socket.socketpair()
    transport = mock.Mock()
    transport.get_extra_info.return_value = one
    connection = mock.Mock(transport=transport, _socket_wait=SocketWait(transport))
    sent_us = 0 if sent_s is None else round(1e6 * (of_day_s - sent_s))
    with one, other, mock.patch.object(time, "time", return_value=of_day_s):
        since_s = InferenceProtocol._readable_since_s(connection, now_s, now_s - 0.002, sent_us)
    assert now_s - since_s == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("bound_s", "kernel_s", "expected_s"),
    [
        pytest.param((0.0, 0.0), 0.4, (0.4, 0.0), id="idle: the first one waited to be accepted"),
        pytest.param((0.0, 0.1), 0.02, (0.02, 0.02), id="busy: the kernel knows better"),
        pytest.param((0.0, 0.1), 0.3, (0.3, 0.1), id="busy: no longer than the loop"),
        pytest.param((0.0, 0.1), None, (0.0, 0.1), id="the kernel does not tell"),
        pytest.param((0.0, RESOLUTION_S / 2), 0.3, (0.3, RESOLUTION_S / 2), id="a short wait"),
    ],
)
def test_a_request_arrived_when_its_last_bytes_did(
    bound_s: tuple[float, float], kernel_s: float | None, expected_s: tuple[float, float]
) -> None:
    """The first and the second request of a TCP connection, by the event loop's bound of each."""
    now_s = 50.0
    connection = mock.Mock(_socket_wait=None)
    connection.transport.get_extra_info.return_value = None
    with mock.patch.object(SocketWait, "waited_s", return_value=kernel_s):
        found = [
            now_s - InferenceProtocol._readable_since_s(connection, now_s, now_s - one)
            for one in bound_s
        ]
    assert found == pytest.approx(expected_s)
