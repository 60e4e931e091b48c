"""The program of a worker process: construct a stage's code, then run batches.

The process ends when its socket closes, so it outlives its parent process by one batch at most.
"""

import contextlib
import json
import os
import pickle
import signal
import socket
import struct
import sys

from deployments.models.threads import limit_threads
from deployments.pipelines.core.items import BatchFailure, ItemFailure
from deployments.pipelines.workers.arena import Arena
from deployments.pipelines.workers.predictor import Predictor, construct

#: The kind of a message, and the bytes of its content in the arena.
MESSAGE = struct.Struct("<BQ")
START, BATCH = 0, 1


class UnpicklableError(Exception):
    """A batch cannot be sent between processes, or an exception cannot be read again."""


def main(arguments: list[str]) -> None:
    """Serve the batches that come over an inherited socket; `arguments` are its descriptors."""
    for number in (signal.SIGINT, signal.SIGTERM):  # of a whole group: the parent process stops it
        signal.signal(number, signal.SIG_IGN)
    descriptor, requests, replies = map(int, arguments)
    connection = socket.socket(fileno=descriptor)
    try:
        with contextlib.suppress(ConnectionError):  # the parent has gone, or needs this no more
            _serve(connection, Arena(requests), Arena(replies))
    finally:
        connection.detach()  # closed only by the end of the process, whose status is known by then


def _serve(connection: socket.socket, requests: Arena, replies: Arena) -> None:
    run: Predictor | None = None
    while message := connection.recv(MESSAGE.size):
        kind, size = MESSAGE.unpack(message)
        if kind == START:
            run, reply = _start(requests.read(size, copy=True))
            written = replies.write(reply)
        else:
            assert run is not None
            written = run_batch(run, requests, size, replies)
        connection.send(MESSAGE.pack(kind, written))


def _start(start: tuple[bytes, list[int]]) -> tuple[Predictor | None, str | None]:
    """Return the code, which computes in one thread unless it sets another number, or an error."""
    pickled, cpus = start
    try:
        limit_threads(1)
        os.sched_setaffinity(0, cpus)
        stage = pickle.loads(pickled)
    except BaseException as error:
        return None, f"{type(error).__name__}: {error}"
    return construct(stage)


def run_batch(run: Predictor, requests: Arena, size: int, replies: Arena) -> int:
    """Run the batch of `size` bytes in one arena; return the bytes of its outcome in the other."""
    try:
        items = requests.read(size, copy=False)
    except Exception as error:
        return replies.write(not_sent(error))
    outcome = run(items)
    if isinstance(outcome, BatchFailure):
        return replies.write(BatchFailure(_readable(outcome.error), outcome.whole))
    parts = [
        ItemFailure(_readable(part.error)) if type(part) is ItemFailure else part
        for part in outcome
    ]
    try:
        return replies.write(parts)
    except Exception as error:
        return replies.write(not_sent(error))


def not_sent(error: Exception) -> BatchFailure:
    """Return the outcome of a batch that cannot be sent; bisection finds the item."""
    reason = f"{type(error).__name__}: {error}"
    return BatchFailure(UnpicklableError(f"a batch cannot be sent between processes: {reason}"))


def _readable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return UnpicklableError(f"{type(error).__name__}: {error}")
    return error


def command(descriptors: list[int]) -> list[str]:
    paths = json.dumps([path or os.getcwd() for path in sys.path])
    program = (
        "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
        "from deployments.pipelines.workers.child import main; main(sys.argv[1:])"
    )
    return [sys.executable, "-c", program, paths, *map(str, descriptors)]
