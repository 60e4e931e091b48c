"""The connection to a worker in another process: batches go out, outcomes come back.

The content of a message lies in memory that both processes share; the socket carries only small
records, which fit into its buffer, so the event loop never waits. It ends when the process dies.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from deployments.pipelines.core.items import Outcome, StageBatch
from deployments.pipelines.workers.arena import Arena
from deployments.pipelines.workers.child import BATCH, MESSAGE, START, not_sent


class WorkerLink:
    """Our end of the connection to one worker, which owns it, a SOCK_SEQPACKET."""

    def __init__(
        self,
        connection: socket.socket,
        on_message: Callable[[int, Any], None],
        on_end: Callable[[], None],
    ) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            self.requests = Arena()
            undo.callback(self.requests.close)
            self.replies = Arena()
            undo.pop_all()
        self._socket = connection
        self._on_message, self._on_end = on_message, on_end
        self._loop = asyncio.get_running_loop()
        self._closed = False
        connection.setblocking(False)
        self._loop.add_reader(connection, self._read)

    def introduce(self) -> None:
        """Send the descriptors of the arenas to a process that has not inherited them."""
        message = MESSAGE.pack(START, 0)
        arenas = [self.requests.descriptor, self.replies.descriptor]
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._socket, [message], arenas)

    def send(self, kind: int, content: Any) -> None:
        """Send a message; may raise any error of pickling."""
        message = MESSAGE.pack(kind, self.requests.write(content))
        # If the process has died, the loop learns it from the socket.
        with contextlib.suppress(ConnectionError):
            self._socket.send(message)

    def run(self, batch: StageBatch) -> Outcome | None:
        try:
            self.send(BATCH, batch.values)
        except Exception as error:
            return not_sent(error)
        return None

    def stop_reading(self) -> None:
        self._loop.remove_reader(self._socket)

    def close(self) -> None:
        """Close the socket, which makes the other end stop after its batch."""
        if not self._closed:
            self._closed = True
            self.stop_reading()
            self._socket.close()
            self.requests.close()
            self.replies.close()

    def _read(self) -> None:
        try:
            message = self._socket.recv(MESSAGE.size)
        except BlockingIOError:
            return
        except ConnectionError:
            message = b""
        if not message:
            self._on_end()
            return
        kind, size = MESSAGE.unpack(message)
        content: Any = None
        if size:
            try:
                content = self.replies.read(size, copy=True)
            except Exception as error:
                content = not_sent(error)
        self._on_message(kind, content)
