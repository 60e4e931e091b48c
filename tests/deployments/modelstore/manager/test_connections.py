"""Descriptors of the manager: no client takes those of others, and a shortage is waited for."""

import errno
import resource
import selectors
from contextlib import ExitStack

import pytest

from deployments.modelstore import wire
from deployments.modelstore.manager import connections as connections_module
from deployments.modelstore.manager.connections import Connections
from deployments.modelstore.manager.endpoint import listen

#: Three quarters of 16.
ROOM = 12


@pytest.fixture
def listener(tmp_path, monkeypatch):
    monkeypatch.setattr(connections_module, "PAUSE_S", 0.0)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (16, 16))
    return listen(tmp_path / "store.sock")


class Server:
    def __init__(self, listener):
        self.selector = selectors.DefaultSelector()
        self.connections = Connections(listener, self.selector, lambda *a: None, lambda *a: None)

    def serve(self, ready):
        """Serve sockets that are ready; return how many clients there are."""
        for key, mask in ready:
            if key.data is None:
                self.connections.accept()
            else:
                self.connections.serve(key.data, mask)
        return len(self.connections._clients)


def connect(stack, path, number):
    made = [stack.enter_context(wire.make_socket()) for _ in range(number)]
    for connection in made:
        connection.connect(str(path))
    return made


def test_clients_that_find_no_room_wait_without_a_busy_loop(listener, tmp_path):
    server = Server(listener)
    with ExitStack() as stack:
        clients = connect(stack, tmp_path / "store.sock", ROOM + 5)
        assert server.serve(server.selector.select(0)) == ROOM
        assert server.selector.select(0) == []
        for client in clients[:3]:
            client.close()
        assert server.serve(server.selector.select(0)) == ROOM - 3
        assert server.serve(server.connections.wait()) == ROOM
        server.connections.close()


def test_a_machine_without_descriptors_is_asked_again_after_a_pause(listener, tmp_path):
    errors = [errno.EMFILE, errno.ENFILE]

    class Full:
        fileno, close = listener.fileno, listener.close

        def accept(self):
            if errors:
                raise OSError(errors.pop(), "too many open files")
            return listener.accept()

    server = Server(Full())
    with ExitStack() as stack:
        connect(stack, tmp_path / "store.sock", 1)
        assert server.serve(server.connections.wait()) == 0
        assert server.selector.select(0) == []
        assert server.serve(server.connections.wait()) == 0
        assert server.serve(server.connections.wait()) == 1
        server.connections.close()
