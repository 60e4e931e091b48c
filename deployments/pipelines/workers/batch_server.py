"""Run the batches that the pipelines on this machine send to a stage's replica.

A pipeline finds the socket of a replica in the stage's folder, connects, and sends the descriptors
of two arenas; batches then travel as to a worker process.
"""

import contextlib
import hashlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deployments.errors import StartError
from deployments.models.threads import limit_threads
from deployments.modelstore.private_folder import make_private
from deployments.pipelines.core.items import BatchFailure
from deployments.pipelines.workers.arena import Arena
from deployments.pipelines.workers.child import BATCH, MESSAGE, START, run_batch
from deployments.pipelines.workers.predictor import Predictor

#: A further kind of message: the replica takes no further batches.
RETIRED = 2
#: Suffix of the replicas' sockets.
SUFFIX = ".sock"
_KIND = socket.AF_UNIX, socket.SOCK_SEQPACKET


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
    """Runs batches on `cpus`, one at a time, with a thread for each pipeline that connects.

    `busy_since_s` is the start of the present batch, by `time.monotonic`; `failed` is whether a
    thread has ended early, as without a descriptor for a connection. Errors as of `private`.
    """

    def __init__(self, predict: Predictor, folder: Path, cpus: float = 1.0) -> None:
        self.busy_since_s: float | None = None
        self.failed = self._retired = False
        self._predict, self._cpus = predict, cpus
        self._one_at_a_time = threading.Lock()
        self._path = private(folder) / f"{os.getpid()}-{id(self):x}{SUFFIX}"
        self._listener = socket.socket(*_KIND)
        # The socket must accept connections before its name is visible.
        unfinished = self._path.with_suffix(".new")
        self._listener.bind(str(unfinished))
        self._listener.listen()
        unfinished.rename(self._path)
        self._pipelines: dict[socket.socket, threading.Thread] = {}
        self._acceptor = self._start(self._accept)

    def run(self, items: list[Any]) -> list[Any] | BatchFailure:
        with self._one_at_a_time:
            self.busy_since_s = time.monotonic()
            outcome = self._predict(items)
            self.busy_since_s = None
            return outcome

    def retire(self) -> None:
        """Accept no further pipelines, and request that connected ones leave.

        Each leaves when it has the outcome of its batch. May be called from any thread.
        """
        if self._retired:
            return
        self._retired = True
        with contextlib.suppress(OSError), socket.socket(*_KIND) as wakes:
            wakes.connect(str(self._path))  # the acceptor ends
        self._path.unlink(missing_ok=True)
        for connection in [*self._pipelines]:
            _send(connection, RETIRED)

    def close(self, timeout_s: float) -> None:
        """Wait until all pipelines have left, at most about `timeout_s`."""
        self.retire()
        end_s = time.monotonic() + timeout_s
        self._acceptor.join(timeout_s)
        for connection, thread in [*self._pipelines.items()]:
            thread.join(max(0.0, end_s - time.monotonic()))
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _start(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException:
                self.failed = True
                raise

        thread = threading.Thread(target=run, name="sojourn-batches", daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        with self._listener:
            while not self._retired:
                connection, _ = self._listener.accept()
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        self._pipelines[connection] = threading.current_thread()
        limit_threads(self._cpus)  # OpenMP has a number for each thread
        arenas: list[Arena] = []
        with connection, contextlib.suppress(ConnectionError):
            try:
                while True:
                    message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE.size, 2)
                    if not message:
                        return
                    kind, size = MESSAGE.unpack(message)
                    if kind == START:
                        arenas += map(Arena, descriptors)
                        _send(connection, RETIRED if self._retired else START)
                    else:
                        requests, replies = arenas
                        _send(connection, BATCH, run_batch(self.run, requests, size, replies))
            finally:
                self._pipelines.pop(connection, None)
                for arena in arenas:
                    arena.close()


def _send(connection: socket.socket, kind: int, size: int = 0) -> None:
    """Send a message; there is room, because a pipeline reads an answer before it asks again."""
    with contextlib.suppress(OSError):  # the pipeline has gone: the next read of its socket fails
        connection.send(MESSAGE.pack(kind, size))
