"""The connection to a worker in another process: batches go out, outcomes come back.

The event loop never waits for the other end. The content of a message lies in memory that both
processes share; the socket carries only small records, which fit into its buffer. The connection
ends when the process dies.
"""

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable
from typing import Any

from deployments.pipelines.core.items import RETRY, BatchFailure, ItemFailure, Outcome, StageBatch
from deployments.pipelines.workers.arena import Arena
from deployments.pipelines.workers.child import (
    BATCH,
    LATE,
    MESSAGE,
    START,
    UnpicklableError,
    unsendable,
)


class WorkerLink:
    """Our end of the connection to one worker.

    Parameters
    ----------
    connection : socket.socket
        Of type SOCK_SEQPACKET; the link owns it, and closes it if it cannot be made.
    on_message : callable
        Called with the kind of each message, and its content if it has one. The outcome of a batch
        is of kind BATCH, also of one that came too late.
    on_end : callable
        Called when the other end has closed, or its process has died.

    Raises
    ------
    OSError
        There are no descriptors left, or no memory.
    """

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
        #: For each item of the batch: why it could not be sent, or None.
        self._failures: list[ItemFailure | None] = []
        self._socket = connection
        self._on_message_of, self._on_end = on_message, on_end
        self._loop = asyncio.get_running_loop()
        self._closed = False
        connection.setblocking(False)
        self._loop.add_reader(connection, self._read)

    def introduce(self) -> None:
        """Send the descriptors of the arenas to a process that has not inherited them."""
        message = MESSAGE.pack(START, 0, math.inf)
        arenas = [self.requests.descriptor, self.replies.descriptor]
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._socket, [message], arenas)

    def send(self, kind: int, content: Any, until_s: float = math.inf) -> None:
        """Send a message that expires at `until_s`; may raise any error of pickling."""
        message = MESSAGE.pack(kind, self.requests.write(content), until_s)
        # If the process has died, the loop learns it from the socket.
        with contextlib.suppress(ConnectionError):
            self._socket.send(message)

    def run(self, batch: StageBatch) -> Outcome | None:
        """Send a batch; return its outcome if none of it can be sent."""
        values = batch.values
        until_s = max([item.flow.deadline_s for item in batch.items])
        self._failures = [None] * len(values)
        try:
            self.send(BATCH, values, until_s)
        except Exception:
            self._failures = [unsendable(value) for value in values]
            failures = zip(values, self._failures, strict=True)
            kept = [value for value, failure in failures if failure is None]
            if not kept:
                return [*self._failures]
            try:
                self.send(BATCH, kept, until_s)
            except Exception as error:
                # Each can be sent alone, but not with the others, or not at present.
                return BatchFailure(UnpicklableError(f"a batch cannot be sent: {error}"))
        return None

    def _outcome(self, kind: int, reply: Any) -> Any:
        """Return the outcome of the batch, with the items that could not be sent."""
        if kind == LATE:
            reply = [RETRY] * self._failures.count(None)
        if not isinstance(reply, list):
            return reply
        results = iter(reply)
        return [next(results) if failure is None else failure for failure in self._failures]

    def close(self) -> None:
        """Close the socket, which makes the other end stop after its batch."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket)
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
        kind, size, _ = MESSAGE.unpack(message)
        content: Any = None
        if size:
            try:
                content = self.replies.read(size, copy=True)
            except Exception as error:
                content = BatchFailure(UnpicklableError(f"a result cannot be read: {error}"))
        if kind in (BATCH, LATE):
            kind, content = BATCH, self._outcome(kind, content)
        self._on_message_of(kind, content)
