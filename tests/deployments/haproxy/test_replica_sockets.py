import os
import socket
from unittest import mock

import pytest

from deployments.haproxy.replica_sockets import (
    is_served,
    open_socket,
    peer_of,
)
from tests.support.ports import free_port


def test_a_replica_is_found_by_its_port_while_it_listens():
    port = free_port()
    assert not is_served(port)
    one = open_socket(port)
    with one:
        assert not is_served(port)
        one.listen()
        assert is_served(port)
        with mock.patch.object(os, "getuid", return_value=os.getuid() + 1):
            assert not is_served(port), "another user took the name, who gets no requests"
        assert not is_served(free_port())
        assert open_socket(port) is None
    assert not is_served(port)


@pytest.mark.parametrize(("other_user", "peer"), [(0, ""), (1, None)])
def test_only_a_process_of_this_user_passes_for_haproxy(other_user, peer):
    one, other = socket.socketpair()
    transport = mock.Mock()
    transport.get_extra_info.return_value = one
    with one, other, mock.patch.object(os, "getuid", return_value=os.getuid() + other_user):
        assert peer_of(transport) == peer
