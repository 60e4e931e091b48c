"""The manager's client connections: messages in, answers out."""

import asyncio
import logging
import os
import resource
import socket
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
    """The clients of one listening socket, on an event loop.

    `on_message` gets a client's message and its descriptors, which are closed afterwards; an error
    that it raises is the answer. `on_gone` is called when a connection has been closed.
    """

    def __init__(
        self,
        listener: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Client, dict[str, Any], Sequence[int]], None],
        on_gone: Callable[[Client], None],
    ) -> None:
        self._listener = listener
        self._loop = loop
        self._on_message, self._on_gone = on_message, on_gone
        self._clients: set[Client] = set()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_clients = int(CLIENT_SHARE * descriptors)
        loop.add_reader(listener, self._accept)

    def __contains__(self, client: Client) -> bool:
        return client in self._clients

    def _accept(self) -> None:
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
            self._loop.add_reader(connection, self._read, client)
        # The listener would stay ready.
        self._loop.remove_reader(self._listener)
        self._loop.call_later(PAUSE_S, self._loop.add_reader, self._listener, self._accept)

    def send(
        self, client: Client, message: dict[str, Any], descriptors: Sequence[int] = ()
    ) -> None:
        if client in self._clients:
            client.outbox.append((message, list(descriptors)))
            self._flush(client)

    def send_error(self, client: Client, error: SojournError) -> None:
        self.send(client, wire.failure(error))

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
            self._loop.remove_writer(client.connection)
        except BlockingIOError:
            self._loop.add_writer(client.connection, self._flush, client)
        except (OSError, StoreError):
            self._disconnect(client)

    def _disconnect(self, client: Client) -> None:
        if client not in self._clients:
            return
        self._clients.remove(client)
        self._loop.remove_reader(client.connection)
        self._loop.remove_writer(client.connection)
        client.connection.close()
        self._on_gone(client)


def fault_of(error: Exception) -> StoreError:
    """Return the error that clients see for a fault of the manager."""
    return StoreError(f"the model store failed: {type(error).__name__}: {error}")
