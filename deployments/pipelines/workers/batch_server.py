"""Run the batches that the pipelines on this machine send to a stage's replica.

A pipeline finds the socket of a replica in the stage's folder, connects, and sends the descriptors
of two arenas; batches then travel as to a worker process. One thread runs the batches of all
connections in turn, one at a time. While it runs a batch of one pipeline, it reports to the others
that the replica is taken, and they prefer a free one.
"""

import contextlib
import errno
import hashlib
import logging
import math
import os
import selectors
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from deployments.errors import StartError
from deployments.modelstore.private_folder import make_private
from deployments.pipelines.workers.arena import Arena
from deployments.pipelines.workers.child import BATCH, LATE, MESSAGE, START, run_batch
from deployments.pipelines.workers.predictor import Predictor

logger = logging.getLogger("sojourn.pipelines")

#: Further kinds of messages: another pipeline uses the replica; it is free again; it takes no
#: further batches.
TAKEN, FREE, RETIRED = 3, 4, 5
#: Suffix of the replicas' sockets.
SUFFIX = ".sock"
#: Pause before the next attempt when no descriptor is left for a connection.
_ACCEPT_AGAIN_S = 0.1


def socket_folder(*words: str) -> Path:
    """Return the folder of a stage's sockets; `words` identify the stage."""
    # A socket's path may have some hundred bytes.
    name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
    return Path(tempfile.gettempdir()) / f"sojourn-stage-{os.getuid()}-{name}"


def private(folder: Path) -> Path:
    """Return a folder where only this user can put a socket, because batches from it are run.

    Raises
    ------
    StartError
        It is open to other users, or cannot be made.
    """
    try:
        return make_private(folder)
    except OSError as error:
        raise StartError(f"sockets of a stage: {error}") from error


def _sweep(folder: Path) -> None:
    """Remove the sockets of killed replicas.

    Pipelines do so when a connection fails, but not after they abandoned a hanging replica.
    """
    for path in folder.glob(f"*{SUFFIX}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                pass  # it has gone, or has too many connections to accept


def _arenas(descriptors: Sequence[int]) -> tuple[Arena, Arena]:
    """Return the arenas of a pipeline's descriptors; raise OSError if there is no room."""
    with contextlib.ExitStack() as undo:
        for descriptor in descriptors:
            undo.callback(os.close, descriptor)
        if len(descriptors) != 2:  # the others are lost
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        arenas = Arena(descriptors[0]), Arena(descriptors[1])
        undo.pop_all()
        return arenas


class _Client:
    """The connection to one pipeline, which may be slow to read.

    Messages wait in order for room in the socket; of TAKEN and FREE only the latest is sent.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.arenas: tuple[Arena, Arena] | None = None
        self._unsent: deque[bytes] = deque()
        self._taken = self._sent_taken = False

    def send(self, kind: int, size: int = 0) -> None:
        """Send a message, now or when the pipeline has read the earlier ones."""
        self._unsent.append(MESSAGE.pack(kind, size, math.inf))
        self.flush()

    def send_taken(self, taken: bool) -> None:
        """Report whether another pipeline uses the replica."""
        self._taken = taken
        self.flush()

    @property
    def waits_for_room(self) -> bool:
        """Whether the socket had no room for a message."""
        return bool(self._unsent) or self._taken != self._sent_taken

    def flush(self) -> None:
        """Send as much as fits into the socket."""
        try:
            while self._unsent:
                self._write(self._unsent[0])
                self._unsent.popleft()
            if self._taken != self._sent_taken:
                self._write(MESSAGE.pack(TAKEN if self._taken else FREE, 0, math.inf))
                self._sent_taken = self._taken
        except BlockingIOError:
            pass
        except OSError:
            # The pipeline has gone: the next read of its socket fails.
            self._unsent.clear()
            self._sent_taken = self._taken

    def _write(self, message: bytes) -> None:
        self.connection.send(message, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self.connection.close()
        for arena in self.arenas or ():
            arena.close()


class BatchServer:
    """Runs batches in a separate thread, for all pipelines that connect.

    `busy_since_s` is the start of the present batch, by `time.monotonic`.

    Raises
    ------
    StartError
        The folder of the stage's sockets is open to other users.
    """

    def __init__(self, run: Predictor, folder: Path) -> None:
        self.busy_since_s: float | None = None
        self._run = run
        self._path = private(folder) / f"{os.getpid()}-{id(self):x}{SUFFIX}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The socket must accept connections before its name is visible.
        unfinished = self._path.with_suffix(".new")
        self._listener.bind(str(unfinished))
        self._listener.listen()
        unfinished.rename(self._path)
        _sweep(folder)
        self._clients: dict[socket.socket, _Client] = {}
        self._wake, self._woken = socket.socketpair()
        self._retired = self._closed = False
        self._thread = threading.Thread(target=self._serve, name="sojourn-batches", daemon=True)
        self._thread.start()

    def retire(self) -> None:
        """Accept no further pipelines, and request that connected ones leave.

        Each leaves when it has the outcome of its batch. May be called from any thread.
        """
        self._path.unlink(missing_ok=True)
        self._retired = True
        # The thread may have ended already.
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def close(self, timeout_s: float) -> None:
        """Wait until all pipelines have left, at most about `timeout_s`."""
        if not self._retired:
            self.retire()
        self._thread.join(timeout_s)
        self._closed = True
        with contextlib.suppress(OSError), self._wake:
            self._wake.send(b"\0")

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener, self._woken:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            announced = False
            while not self._closed and (self._clients or not announced):
                for client in self._clients.values():
                    events = selectors.EVENT_READ
                    if client.waits_for_room:
                        events |= selectors.EVENT_WRITE
                    if selector.get_key(client.connection).events != events:
                        selector.modify(client.connection, events)
                for key, events in selector.select():
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    if ready is self._listener:
                        self._accept(selector)
                    elif ready is self._woken:
                        ready.recv(16)
                    else:
                        client = self._clients[ready]
                        if events & selectors.EVENT_WRITE:
                            client.flush()
                        if events & selectors.EVENT_READ and not self._serve_client(client):
                            selector.unregister(ready)
                            self._clients.pop(ready).close()
                if self._retired and not announced:
                    announced = True
                    for client in self._clients.values():
                        client.send(RETIRED)
            for client in self._clients.values():
                client.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            logger.exception("a pipeline could not be accepted; trying again")
            time.sleep(_ACCEPT_AGAIN_S)
            return
        self._clients[connection] = _Client(connection)
        selector.register(connection, selectors.EVENT_READ)

    def _serve_client(self, client: _Client) -> bool:
        """Serve one message; return False if the pipeline has gone."""
        try:
            message, descriptors, _, _ = socket.recv_fds(client.connection, MESSAGE.size, 2)
        except ConnectionError:
            return False
        if not message:
            return False
        kind, size, until_s = MESSAGE.unpack(message)
        if kind == START:
            try:
                client.arenas = _arenas(descriptors)
            except OSError:
                logger.exception("a pipeline could not be served; it tries again")
                return False
            client.send(RETIRED if self._retired else START)
            return True
        assert client.arenas is not None
        self.busy_since_s = time.monotonic()
        if self.busy_since_s > until_s:
            client.send(LATE)
        else:
            others = [other for other in self._clients.values() if other is not client]
            for other in others:
                other.send_taken(True)
            client.send(BATCH, run_batch(self._run, client.arenas[0], size, client.arenas[1]))
            for other in others:
                other.send_taken(False)
        self.busy_since_s = None
        return True
