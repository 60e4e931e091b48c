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


@pytest.fixture
def waiting(tmp_path, monkeypatch):
    """A listening socket and more clients than there is room for."""
    monkeypatch.setattr(connections_module, "PAUSE_S", 0.0)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (16, 16))
    listener = listen(tmp_path / "store.sock")
    with ExitStack() as stack:
        clients = [stack.enter_context(wire.make_socket()) for _ in range(ROOM + 5)]
        for client in clients:
            client.connect(str(tmp_path / "store.sock"))
        yield listener, clients


def test_clients_that_find_no_room_wait_without_a_busy_loop(waiting):
    listener, clients = waiting
    server = Server(listener)
    assert server.serve(server.selector.select(0)) == ROOM
    assert server.selector.select(0) == []
    for client in clients[:3]:
        client.close()
    assert server.serve(server.selector.select(0)) == ROOM - 3
    assert server.serve(server.connections.wait()) == ROOM
    server.connections.close()
