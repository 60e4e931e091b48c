"""The Unix sockets between HAProxy and the replicas of its node."""

import os
import time
from pathlib import Path
from unittest import mock

import httpx
import pytest

from deployments.haproxy.replica_sockets import (
    SENT_HEADER,
    haproxy_address,
    is_served,
    open_socket,
    sent_at_us,
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
        assert not is_served(free_port())
        assert open_socket(port) is None
    assert not is_served(port)


def test_another_user_who_took_the_name_gets_no_requests() -> None:
    port = free_port()
    one = open_socket(port)
    assert one is not None
    with one, mock.patch.object(os, "getuid", return_value=os.getuid() + 1):
        one.listen()
        assert not is_served(port)


def test_other_systems_have_no_such_sockets() -> None:
    with mock.patch("sys.platform", "darwin"):
        assert open_socket(free_port()) is None
        assert not is_served(free_port())


@pytest.mark.parametrize(
    ("value", "sent_us"),
    [(b"1790000000000000", 1_790_000_000_000_000), (b"", 0), (b"-1", 0), (b"9" * 17, 0)],
)
def test_only_a_time_is_read_as_one(value: bytes, sent_us: int) -> None:
    assert sent_at_us(value) == sent_us


@pytest.mark.slow
def test_haproxy_uses_the_socket_and_says_when_it_sent_a_request_on(tmp_path: Path) -> None:
    front, port = free_port(), free_port()
    with unix_replica(port) as heads, haproxy(front, {"a": port}, tmp_path / "admin.sock"):
        before_us = 1e6 * time.time()
        lie = {SENT_HEADER.decode(): "1"}
        url = f"http://127.0.0.1:{front}/"
        assert httpx.get(url, headers=lie, trust_env=False).content == ANSWER
        sent_us = heads[-1].get_all(SENT_HEADER.decode())
        assert sent_us is not None
        assert len(sent_us) == 1
        # HAProxy reads its clock once in each of its own iterations.
        assert before_us - 1e5 < int(sent_us[0]) <= 1e6 * time.time()
    assert haproxy_address(port) in (tmp_path / "admin.cfg").read_text()
