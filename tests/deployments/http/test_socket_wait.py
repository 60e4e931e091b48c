"""Since when a request waited in its socket, by the kernel and by the event loop."""

import asyncio
import os
import socket
import time
from unittest import mock

import pytest

from deployments.http.app import InferenceApp
from deployments.http.protocol import HostedApp, InferenceProtocol
from deployments.http.socket_wait import RESOLUTION_S, SocketWait
from tests.support.doubles_service import listening, make_service
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
async def test_a_request_arrived_when_its_last_bytes_did(
    bound_s: tuple[float, float], kernel_s: float | None, expected_s: tuple[float, float]
) -> None:
    """The first and the second request of a connection, by what the loop's meter says of each."""
    bounds, found = iter(bound_s), []
    read = InferenceProtocol._readable_since_s

    def readable_since_s(self: InferenceProtocol, now_s: float, _: float) -> float:
        since_s = read(self, now_s, now_s - next(bounds))
        found.append(now_s - since_s)
        return since_s

    async with make_service() as service:
        app = InferenceApp(service, "1")
        InferenceProtocol.hosted = HostedApp(app, asyncio.get_running_loop())
        try:
            with (
                mock.patch.object(InferenceProtocol, "_readable_since_s", readable_since_s),
                mock.patch.object(SocketWait, "waited_s", return_value=kernel_s),
            ):
                async with listening(app, InferenceProtocol) as (_, port):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    for _ in range(2):
                        writer.write(READY)
                        await reader.readuntil(b"\r\n\r\n")
                    writer.close()
                    await writer.wait_closed()
        finally:
            InferenceProtocol.hosted = None
    assert found == pytest.approx(expected_s)
