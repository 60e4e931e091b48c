"""Run the batches that the pipelines on this machine send to a stage's replica.

A pipeline finds the socket of a replica in the stage's folder, connects, and sends the descriptors
of two arenas; batches then travel as to a worker process.
"""

import contextlib
import hashlib
import os
import selectors
import socket
import tempfile
import threading
import time
from pathlib import Path

from deployments.errors import StartError
from deployments.models.threads import limit_threads
from deployments.modelstore.private_folder import make_private
from deployments.pipelines.workers.arena import Arena
from deployments.pipelines.workers.child import BATCH, MESSAGE, START, run_batch
from deployments.pipelines.workers.predictor import Predictor

#: A further kind of message: the replica takes no further batches.
RETIRED = 2
#: Suffix of the replicas' sockets.
SUFFIX = ".sock"


def socket_folder(*words: str) -> Path:
    # A socket's path may have some hundred bytes.
    name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
    return Path(tempfile.gettempdir()) / f"sojourn-stage-{os.getuid()}-{name}"


def private(folder: Path) -> Path:
    """Return a folder where only this user can put a socket, or raise `StartError`."""
    try:
        return make_private(folder)
    except OSError as error:
        raise StartError(f"sockets of a stage: {error}") from error


class BatchServer:
    """Runs the batches of all pipelines that connect in one thread, on `cpus`.

    `busy_since_s` is the start of the present batch, by `time.monotonic`. Errors as of `private`.
    """

    def __init__(self, run: Predictor, folder: Path, cpus: float = 1.0) -> None:
        self.busy_since_s: float | None = None
        self._run, self._cpus = run, cpus
        self._path = private(folder) / f"{os.getpid()}-{id(self):x}{SUFFIX}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The socket must accept connections before its name is visible.
        unfinished = self._path.with_suffix(".new")
        self._listener.bind(str(unfinished))
        self._listener.listen()
        unfinished.rename(self._path)
        #: The arenas of each connected pipeline, once it has sent their descriptors.
        self._clients: dict[socket.socket, tuple[Arena, Arena] | None] = {}
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

    @property
    def failed(self) -> bool:
        """Whether the thread has ended early, as without a descriptor for a connection."""
        return not (self._retired or self._thread.is_alive())

    def _serve(self) -> None:
        limit_threads(self._cpus)  # OpenMP has a number for each thread
        with selectors.DefaultSelector() as selector, self._listener, self._woken:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            announced = False
            try:
                while not self._closed and (self._clients or not announced):
                    for key, _ in selector.select():
                        ready = key.fileobj
                        assert isinstance(ready, socket.socket)
                        if ready is self._listener:
                            self._accept(selector)
                        elif ready is self._woken:
                            ready.recv(16)
                        elif not self._serve_client(ready):
                            selector.unregister(ready)
                            self._disconnect(ready)
                    if self._retired and not announced:
                        announced = True
                        for connection in self._clients:
                            _send(connection, RETIRED)
            finally:
                for connection in [*self._clients]:
                    self._disconnect(connection)

    def _disconnect(self, connection: socket.socket) -> None:
        connection.close()
        for arena in self._clients.pop(connection) or ():
            arena.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        connection, _ = self._listener.accept()
        self._clients[connection] = None
        selector.register(connection, selectors.EVENT_READ)

    def _serve_client(self, connection: socket.socket) -> bool:
        """Serve one message; return False if the pipeline has gone."""
        try:
            message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE.size, 2)
        except ConnectionError:
            return False
        if not message:
            return False
        kind, size = MESSAGE.unpack(message)
        if kind == START:
            requests, replies = map(Arena, descriptors)
            self._clients[connection] = requests, replies
            _send(connection, RETIRED if self._retired else START)
            return True
        arenas = self._clients[connection]
        assert arenas is not None
        self.busy_since_s = time.monotonic()
        written = run_batch(self._run, arenas[0], size, arenas[1])
        self.busy_since_s = None
        _send(connection, BATCH, written)
        return True


def _send(connection: socket.socket, kind: int, size: int = 0) -> None:
    """Send a message; there is room, because a pipeline reads an answer before it asks again."""
    with contextlib.suppress(OSError):  # the pipeline has gone: the next read of its socket fails
        connection.send(MESSAGE.pack(kind, size))
