"""The program of a worker process: construct a stage's code, then run batches.

A message is a small record on a socket; its content is in an arena. The process ends when the
socket closes, so it outlives its parent process by one batch at most.
"""

import json
import math
import os
import pickle
import signal
import socket
import struct
import sys
from typing import Any

from deployments.pipelines.core.items import BatchFailure, ItemFailure
from deployments.pipelines.workers.arena import Arena
from deployments.pipelines.workers.predictor import Predictor, construct

#: The kind of a message, the bytes of its content in the arena, and the time after which its batch
#: is useless, by `time.monotonic`, which all processes of a machine share. LATE answers such a
#: batch.
MESSAGE = struct.Struct("<BQd")
START, BATCH, LATE = 0, 1, 2


class UnpicklableError(Exception):
    """Replaces an exception or a result that cannot be sent between processes."""


def main(arguments: list[str]) -> None:
    """Serve the batches that come over an inherited socket; `arguments` are its descriptors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    descriptor, requests, replies = map(int, arguments)
    connection = socket.socket(fileno=descriptor)
    try:
        _serve(connection, Arena(requests), Arena(replies))
    finally:
        connection.detach()  # closed only by the end of the process, whose status is known by then


def _serve(connection: socket.socket, requests: Arena, replies: Arena) -> None:
    run: Predictor | None = None
    while message := _receive(connection):
        kind, size, _ = MESSAGE.unpack(message)
        if kind == START:
            run, reply = _start(requests.read(size, copy=True))
            written = replies.write(reply)
        else:
            assert run is not None
            written = run_batch(run, requests, size, replies)
        connection.send(MESSAGE.pack(kind, written, math.inf))


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(MESSAGE.size)
    except ConnectionError:
        return b""


def _start(start: tuple[bytes, list[int] | None]) -> tuple[Predictor | None, str | None]:
    """Construct the code; return it, and the reason of a failure or None."""
    pickled, cpus = start
    try:
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
        recipe = pickle.loads(pickled)
    except BaseException as error:
        return None, f"{type(error).__name__}: {error}"
    return construct(recipe)


def run_batch(run: Predictor, requests: Arena, size: int, replies: Arena) -> int:
    """Run the batch of `size` bytes in one arena; return the bytes of its outcome in the other."""
    try:
        items = requests.read(size, copy=False)
    except Exception as error:
        return _write(replies, BatchFailure(UnpicklableError(f"an item cannot be read: {error}")))
    return _write(replies, run(items))


def _write(replies: Arena, reply: Any) -> int:
    """Write a reply; replace its unsendable parts."""
    try:
        if isinstance(reply, list) and not any(type(part) is ItemFailure for part in reply):
            return replies.write(reply)
        return replies.write(_sendable(reply))
    except Exception:
        pass
    try:
        return replies.write(_sendable(reply))
    except Exception as error:  # each result can be sent alone, but not with the others
        return replies.write(BatchFailure(UnpicklableError(f"a batch cannot be sent: {error}")))


def _sendable(reply: Any) -> Any:
    if isinstance(reply, BatchFailure):
        return BatchFailure(_sendable_error(reply.error), reply.whole)
    if isinstance(reply, list):
        return [_sendable_part(part) for part in reply]
    return reply


def _sendable_part(part: Any) -> Any:
    if isinstance(part, ItemFailure):
        return ItemFailure(_sendable_error(part.error))
    return unsendable(part) or part


def unsendable(value: Any) -> ItemFailure | None:
    """Return why a value cannot be sent to another process, or None."""
    try:
        pickle.dumps(value, protocol=5, buffer_callback=lambda buffer: None)
    except Exception as error:
        return ItemFailure(
            UnpicklableError(f"a {type(value).__name__} cannot be sent between processes: {error}")
        )
    return None


def _sendable_error(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return UnpicklableError(f"{type(error).__name__}: {error}")
    return error


def command(descriptors: list[int]) -> list[str]:
    """Return the command line of a worker process that inherits `descriptors`."""
    paths = json.dumps([path or os.getcwd() for path in sys.path])
    program = (
        "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
        "from deployments.pipelines.workers.child import main; main(sys.argv[1:])"
    )
    return [sys.executable, "-c", program, paths, *map(str, descriptors)]
