"""An open-loop client: requests leave when they are due, whether or not the server keeps up.

The client shares the machine with the server it measures, so it is a compiled loop around epoll
that costs 5 to 10 µs of CPU per request. The kernel notes when it received each answer, so that the
client's own waits for a CPU do not count as the service's.
"""

import os
import select
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.open_loop_kernel import ANSWER_BYTES, follow, libc
from benchmarks.peers.protocols import Workload
from loadtests.records import Outcome

FloatArray = NDArray[np.float64]

CONNECTIONS = 256
#: For how long a request that was sent is waited for.
PATIENCE_S = 5.0
#: One answer in so many is kept and checked.
KEEP_EVERY = 64
#: From the end of the preparations to the start.
_LEAD_NS = 100_000_000
_SO_TIMESTAMPNS = 35
_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True, eq=False)
class Run:
    """The requests of all clients, in arrays of shape (n,); times in s, NaN where there is none.

    Requests were due, the kernel had their whole answers, and these were read. An outcome is an
    `Outcome` (OK with status 200), or the status of an HTTP error. `answers` has the bodies of a
    sample of those with status 200, by the request's number.
    """

    due_s: FloatArray
    received_s: FloatArray
    read_s: FloatArray
    outcome: NDArray[np.int16]
    answers: dict[int, bytes] = field(default_factory=dict)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Whether each request was answered with status 200, shape (n,)."""
        return np.asarray(self.outcome == Outcome.OK)

    @property
    def response_ms(self) -> FloatArray:
        """From when each request was due until the client had read its answer, shape (n,)."""
        return 1e3 * (self.read_s - self.due_s)

    def in_time(self, response_time_ms: float) -> NDArray[np.bool_]:
        """Return which requests were answered rightly in time, shape (n,).

        The time counts from when each was due until the kernel had its answer.
        """
        return self.answered & (1e3 * (self.received_s - self.due_s) <= response_time_ms)


def _connect(port: int, count: int) -> list[socket.socket]:
    connections = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        connections.append(connection)
    return connections


def _compile() -> None:
    """Compile the loop, by sending nothing."""
    whole, none = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    none.setflags(write=False)
    kept, outcome = np.zeros((0, ANSWER_BYTES), np.uint8), np.zeros(0, np.int16)
    service = (whole, 0, 0, none, np.zeros(1, np.int64), -1, np.zeros(0, np.int32), whole)
    arguments: tuple[Any, ...] = (*service, whole, whole, outcome, kept, whole, 1)
    follow(*arguments)


def _run(
    requests: Sequence[bytes],
    arrivals_s: FloatArray,
    port: int,
    connections: int,
) -> Run:
    """Send the requests from this process."""
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    # The client goes before all other processes, as one on another machine would. Only root may.
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    _compile()
    sockets = _connect(port, connections)
    files = np.array([one.fileno() for one in sockets], np.int32)
    connection_of = np.zeros(int(files.max()) + 1, np.int64)
    connection_of[files] = np.arange(connections)
    count = arrivals_s.size
    received_ns, read_ns = np.zeros(count, np.int64), np.zeros(count, np.int64)
    outcome = np.full(count, Outcome.UNANSWERED, np.int16)
    kept = np.zeros((-(-count // KEEP_EVERY), ANSWER_BYTES), np.uint8)
    kept_bytes = np.zeros(kept.shape[0], np.int64)
    due_ns = (1e9 * arrivals_s).astype(np.int64)
    joined = np.frombuffer(b"".join(requests), np.uint8)
    starts = np.cumsum([0, *map(len, requests)])
    with select.epoll() as epoll:
        for file in files.tolist():
            epoll.register(file, select.EPOLLIN)
        start_ns = time.time_ns() + _LEAD_NS
        times = (due_ns, start_ns, round(1e9 * PATIENCE_S))
        service = (joined, starts, epoll.fileno(), files, connection_of)
        results = (received_ns, read_ns, outcome, kept, kept_bytes, KEEP_EVERY)
        arguments: tuple[Any, ...] = (*times, *service, *results)
        follow(*arguments)
    for one in sockets:
        one.close()
    received_s, read_s = (
        np.where(at_ns > 0, 1e-9 * (at_ns - start_ns), np.nan).astype(np.float64)
        for at_ns in (received_ns, read_ns)
    )
    answers = {
        KEEP_EVERY * place: bytes(kept[place, :length]).partition(b"\r\n\r\n")[2]
        for place, length in enumerate(kept_bytes.tolist())
        if length
    }
    return Run(arrivals_s, received_s, read_s, outcome, answers)


def open_loop(
    workload: Workload,
    arrivals_s: FloatArray,
    port: int,
    *,
    connections: int = CONNECTIONS,
) -> Run:
    """Send requests when they are due, from a process of its own.

    A request that is due while all connections are busy leaves when one is free. The requests of
    the workload are sent in turn, and a sample of the answers is checked. `arrivals_s`, shape (n,),
    ascend, in seconds from the start.
    """
    head = f"POST {workload.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: "
    requests = [head.encode() + b"%d\r\n\r\n" % len(body) + body for body in workload.bodies]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        run = pool.submit(_run, requests, arrivals_s, port, connections).result()
    for number, answer in run.answers.items():
        if not workload.is_right(number % len(workload.bodies), answer):
            run.outcome[number] = Outcome.WRONG
    return run
