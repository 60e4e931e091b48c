"""Ports that stay free until the server that a test starts binds them."""

import socket
from pathlib import Path

from tests.support.ports import PORTS, free_port

_KERNELS_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_no_port_is_given_twice_and_none_that_the_kernel_may_give_to_a_connection() -> None:
    """One in some thousand runs failed: a connection had the port, or two servers got one."""
    first, last = map(int, _KERNELS_PORTS.read_text().split())
    found = [free_port() for _ in range(2_000)]
    assert len({*found}) == len(found)
    assert not [port for port in found if first <= port <= last]


def test_a_port_in_use_is_left_out() -> None:
    start = free_port()
    following = PORTS[(PORTS.index(start) + 1) % len(PORTS)]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", following))
        assert free_port() not in (start, following)
