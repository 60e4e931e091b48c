"""The manager's client connections: messages in, answers out."""

import logging
import os
import resource
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from deployments.modelstore import wire
from deployments.modelstore.errors import StoreError
from policy.errors import SojournError

logger = logging.getLogger(__name__)

#: Clients may take this share of the process's descriptors; files and memory need the others.
CLIENT_SHARE = 0.75
#: Wait before accepting again when there is no room for a client.
PAUSE_S = 0.5


class Client:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.outbox: deque[tuple[dict[str, Any], list[int]]] = deque()
        #: Kept for the owner of the connections as long as the client waits.
        self.kept: object = None


class Connections:
    """The clients of one listening socket, on one thread.

    The caller passes ready sockets to `accept` or `serve`. `on_message` gets a client's message and
    its descriptors, which are closed afterwards; an error that it raises is the answer. `on_gone`
    is called when a connection has been closed.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        on_message: Callable[[Client, dict[str, Any], Sequence[int]], None],
        on_gone: Callable[[Client], None],
    ) -> None:
        self._listener = listener
        self._selector = selector
        self._on_message, self._on_gone = on_message, on_gone
        self._clients: set[Client] = set()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_clients = int(CLIENT_SHARE * descriptors)
        self._accept_at_s: float | None = None
        selector.register(listener, selectors.EVENT_READ)

    def __contains__(self, client: Client) -> bool:
        return client in self._clients

    def accept(self) -> None:
        """Accept waiting connections; close those of other users."""
        while len(self._clients) < self._max_clients:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor, or no memory
                break
            if wire.peer_uid(connection) != os.getuid():
                connection.close()
                continue
            connection.setblocking(False)
            client = Client(connection)
            self._clients.add(client)
            self._selector.register(connection, selectors.EVENT_READ, client)
        # The listener would stay ready.
        self._selector.unregister(self._listener)
        self._accept_at_s = time.monotonic() + PAUSE_S

    def wait(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for ready sockets; after a pause, also for new connections."""
        if self._accept_at_s is not None and time.monotonic() >= self._accept_at_s:
            self._accept_at_s = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        return self._selector.select(None if self._accept_at_s is None else PAUSE_S)

    def serve(self, client: Client, events: int) -> None:
        if events & selectors.EVENT_WRITE and client in self._clients:
            self._flush(client)
        if events & selectors.EVENT_READ and client in self._clients:
            self._read(client)

    def send(
        self, client: Client, message: dict[str, Any], descriptors: Sequence[int] = ()
    ) -> None:
        if client in self._clients:
            client.outbox.append((message, list(descriptors)))
            self._flush(client)

    def send_error(self, client: Client, error: SojournError) -> None:
        self.send(client, {"error": [type(error).__name__, str(error)]})

    def close(self) -> None:
        for client in self._clients:
            client.connection.close()
        self._listener.close()

    def _read(self, client: Client) -> None:
        try:
            received = wire.receive(client.connection, wire.MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = None
        except StoreError as error:
            self.send_error(client, error)
            received = None
        if received is None:
            self._disconnect(client)
            return
        message, descriptors = received
        try:
            self._on_message(client, message, descriptors)
        except SojournError as error:
            self.send_error(client, error)
        except Exception as error:
            logger.exception("a request failed: %.200r", message)
            self.send_error(client, fault_of(error))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _flush(self, client: Client) -> None:
        try:
            while client.outbox:
                wire.send(client.connection, *client.outbox[0])
                client.outbox.popleft()
        except BlockingIOError:
            pass
        except (OSError, StoreError):
            self._disconnect(client)
            return
        writes = selectors.EVENT_WRITE if client.outbox else 0
        self._selector.modify(client.connection, selectors.EVENT_READ | writes, client)

    def _disconnect(self, client: Client) -> None:
        if client not in self._clients:
            return
        self._clients.remove(client)
        self._selector.unregister(client.connection)
        client.connection.close()
        self._on_gone(client)


def fault_of(error: Exception) -> StoreError:
    """Return the error that clients see for a fault of the manager."""
    return StoreError(f"the model store failed: {type(error).__name__}: {error}")
