"""The admin socket in front of HAProxy's; `test_supervisor` has a HAProxy behind it."""

import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deployments.haproxy.admin_socket import AdminRelay, ask
from deployments.haproxy.listeners import open_listener, take_over
from deployments.haproxy.ray_config import Address


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[AdminRelay]:
    path = tmp_path / "admin.sock"
    path.write_text("a predecessor's")
    relay = AdminRelay(path, tmp_path / "7.sock")
    relay.open()
    os.set_blocking(relay.fileno(), True)
    yield relay
    relay.close()


@contextmanager
def answering(relay: AdminRelay) -> Iterator[None]:
    thread = threading.Thread(target=relay.answer_next)
    thread.start()
    yield
    thread.join()


def test_without_haproxy_or_sockets_it_has_no_answer_and_its_socket_is_for_its_user_alone(
    tmp_path: Path, relay: AdminRelay
) -> None:
    path = tmp_path / "admin.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with answering(relay):
        assert ask(path, b"show info") == b""
    with answering(relay):
        assert take_over(path) is None
    assert take_over(tmp_path / "nobody.sock") is None


def test_an_address_in_use_is_an_error() -> None:
    with open_listener(Address("[::]", 0)) as first:
        port = first.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()  # it takes both kinds of addresses
        with pytest.raises(OSError, match=f"port {port} of 127.0.0.1: Address already in use"):
            open_listener(Address("127.0.0.1", port))
