"""Sockets that outlive the process that opened them."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deployments.haproxy.admin_socket import AdminRelay
from deployments.haproxy.listeners import HAND_OVER, hand_over, open_listener, take_over
from deployments.haproxy.ray_config import Address


@contextmanager
def predecessor(path: Path, command: Callable[[socket.socket], None]) -> Iterator[None]:
    """Answer one request for the sockets."""
    relay = AdminRelay(path, path, {HAND_OVER: command})
    relay.open()
    os.set_blocking(relay.fileno(), True)
    thread = threading.Thread(target=relay.answer_next)
    thread.start()
    yield
    thread.join()
    relay.close()


def test_clients_that_wait_are_still_there_after_the_hand_over(tmp_path: Path) -> None:
    listener = open_listener(Address("127.0.0.1", 0), shared=False)
    path, haproxy_socket = tmp_path / "admin.sock", Path("/run/42.sock")
    with socket.create_connection(listener.getsockname()) as client:
        client.sendall(b"waiting")
        with predecessor(path, lambda client: hand_over(client, haproxy_socket, [listener])):
            found = take_over(path)
        listener.close()
        assert found is not None
        assert (found.pid, found.haproxy_socket) == (os.getpid(), haproxy_socket)
        (taken,) = found.sockets
        taken.setblocking(True)
        with taken, taken.accept()[0] as connection:
            assert connection.recv(100) == b"waiting"


@pytest.mark.parametrize("answer", [b"", b"Unknown command"])
def test_another_program_at_the_socket_is_no_predecessor(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "admin.sock"
    assert take_over(path) is None
    with predecessor(path, lambda client: client.sendall(answer)):
        assert take_over(path) is None


def test_an_address_in_use_is_an_error_unless_it_is_shared() -> None:
    with open_listener(Address("[::]", 0), shared=True) as first:
        port = first.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()  # it takes both kinds of addresses
        address = Address("127.0.0.1", port)
        with pytest.raises(OSError, match="in use"):
            open_listener(address, shared=False)
        open_listener(address, shared=True).close()
