"""Sockets that outlive the process that opened them."""

import os
import socket
import threading
from pathlib import Path

import pytest

from deployments.haproxy.listeners import HAND_OVER, hand_over, open_listener, take_over
from deployments.haproxy.ray_config import Address


def serve_once(path: Path, answer: bytes | list[socket.socket]) -> threading.Thread:
    """Answer one client at `path` with bytes, or hand these sockets over."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def run() -> None:
        with server:
            client, _ = server.accept()
            with client:
                assert client.recv(100) == HAND_OVER + b"\n"
                if isinstance(answer, bytes):
                    client.sendall(answer)
                else:
                    hand_over(client, Path("/run/42.sock"), answer)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_clients_that_wait_are_still_there_after_the_hand_over(tmp_path: Path) -> None:
    listener = open_listener(Address("127.0.0.1", 0), shared=False)
    port = listener.getsockname()[1]
    path = tmp_path / "admin.sock"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"waiting")
        thread = serve_once(path, [listener])
        predecessor = take_over(path)
        thread.join()
        listener.close()
        assert predecessor is not None
        assert (predecessor.pid, predecessor.haproxy_socket) == (os.getpid(), Path("/run/42.sock"))
        (taken,) = predecessor.sockets
        taken.setblocking(True)
        with taken, taken.accept()[0] as connection:
            assert connection.recv(100) == b"waiting"


@pytest.mark.parametrize("answer", [b"", b"Unknown command"])
def test_another_program_at_the_socket_is_no_predecessor(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "admin.sock"
    assert take_over(path) is None
    thread = serve_once(path, answer)
    assert take_over(path) is None
    thread.join()


def test_an_address_in_use_is_an_error_unless_it_is_shared() -> None:
    with open_listener(Address("[::]", 0), shared=True) as first:
        port = first.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()  # it takes both kinds of addresses
        address = Address("127.0.0.1", port)
        with pytest.raises(OSError, match="in use"):
            open_listener(address, shared=False)
        open_listener(address, shared=True).close()
