import asyncio
import resource
from contextlib import ExitStack

import pytest

from deployments.modelstore import wire
from deployments.modelstore.manager import connections as connections_module
from deployments.modelstore.manager.connections import Connections
from deployments.modelstore.manager.endpoint import listen

#: Three quarters of 16.
ROOM = 12


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
    loop = asyncio.SelectorEventLoop()
    connections = Connections(listener, loop, lambda *a: None, lambda *a: None)

    def served():
        """Serve the sockets that are ready; return how many clients there are."""
        loop.call_soon(loop.stop)
        loop.run_forever()
        return len(connections._clients)

    assert served() == ROOM
    assert not loop.remove_reader(listener)
    for client in clients[:3]:
        client.close()
    counts = [served() for _ in range(4)]
    assert min(counts) == ROOM - 3
    assert counts[-1] == ROOM
    connections.close()
    loop.close()
