"""The Unix sockets between HAProxy and the replicas of its node."""

import os
import socket
from pathlib import Path
from unittest import mock

import httpx
import pytest

from deployments.haproxy.replica_sockets import (
    haproxy_address,
    is_served,
    open_socket,
    peer_of,
)
from tests.support.haproxy.lone import haproxy
from tests.support.haproxy.unix_replica import ANSWER, unix_replica
from tests.support.ports import free_port


def test_a_replica_is_found_by_its_port_while_it_listens() -> None:
    port = free_port()
    assert not is_served(port)
    one = open_socket(port)
    assert one is not None
    with one:
        assert not is_served(port)
        one.listen()
        assert is_served(port)
        with mock.patch.object(os, "getuid", return_value=os.getuid() + 1):
            assert not is_served(port), "another user took the name, who gets no requests"
        assert not is_served(free_port())
        assert open_socket(port) is None
    assert not is_served(port)


def test_other_systems_have_no_such_sockets() -> None:
    with mock.patch("sys.platform", "darwin"):
        assert open_socket(free_port()) is None
        assert not is_served(free_port())


@pytest.mark.parametrize(("other_user", "peer"), [(0, ""), (1, None)])
def test_only_a_process_of_this_user_passes_for_haproxy(other_user: int, peer: str | None) -> None:
    one, other = socket.socketpair()
    transport = mock.Mock()
    transport.get_extra_info.return_value = one
    with one, other, mock.patch.object(os, "getuid", return_value=os.getuid() + other_user):
        assert peer_of(transport) == peer


@pytest.mark.slow
def test_haproxy_uses_the_socket(tmp_path: Path) -> None:
    front, port = free_port(), free_port()
    with unix_replica(port), haproxy(front, {"a": port}, tmp_path / "admin.sock"):
        assert httpx.get(f"http://127.0.0.1:{front}/", trust_env=False).content == ANSWER
    assert haproxy_address(port) in (tmp_path / "admin.cfg").read_text()
