"""The sockets that HAProxy listens on; `test_supervisor` hands them from one to the next."""

import socket

import pytest

from deployments.haproxy.listeners import open_listener
from deployments.haproxy.ray_config import Address


def test_an_address_in_use_is_an_error():
    with open_listener(Address("[::]", 0)) as first:
        port = first.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()  # it takes both kinds of addresses
        with pytest.raises(OSError, match=f"port {port} of 127.0.0.1: Address already in use"):
            open_listener(Address("127.0.0.1", port))
