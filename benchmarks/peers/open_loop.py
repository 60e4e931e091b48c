"""An open-loop client: requests leave when they are due, whether or not the server keeps up.

The client shares the machine with the server it measures, so it is built to be cheap, about 50 µs
per request: requests are encoded in advance, and answers are checked after the run.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import httptools
import numpy as np
import uvloop
from numpy.typing import NDArray

from benchmarks.peers.protocols import Workload
from benchmarks.peers.servers import HOST, PORT
from loadtests.records import Outcome, Records

FloatArray = NDArray[np.float64]
PATIENCE_S = 10.0
_CHECK_EVERY_S = 0.25


@dataclass(eq=False)
class Run:
    """A run, in progress or finished.

    Attributes
    ----------
    start_s : float
        When it began, by ``time.perf_counter``; the times in `records` count from here.
    records : Records
        The outcome of each request. Answers with status 200 are `Outcome.OK` until checked.
    answers : list of bytes
        The body of each answer; empty where there is none.
    """

    start_s: float
    records: Records
    answers: list[bytes]

    def end(self, number: int, outcome: int, body: bytes = b"") -> None:
        """Record how a request ended."""
        self.records.outcome[number] = outcome
        self.records.finished_s[number] = time.perf_counter() - self.start_s
        self.answers[number] = body


@dataclass(eq=False)
class _Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    idle: list["_Connection"]
    run: Run | None = None
    number: int = -1
    body: list[bytes] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not registered as asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpResponseParser(self)

    def send(self, run: Run, number: int, request: bytes, patience_s: float) -> None:
        """Send a request and report its outcome to `run`."""
        self.run, self.number = run, number
        self.body.clear()
        now_s = time.perf_counter() - run.start_s
        run.records.sent_s[number] = now_s
        left_s = run.records.scheduled_s[number] + patience_s - now_s
        self.timer = asyncio.get_running_loop().call_later(max(0.0, left_s), self._give_up)
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Receive a part of an answer."""
        self.body.append(body)

    def on_message_complete(self) -> None:
        """Finish an answer, and free the connection if it is kept alive."""
        status = self.parser.get_status_code()
        self._end(Outcome.OK if status == 200 else status)
        if self.parser.should_keep_alive():
            self.parser = httptools.HttpResponseParser(self)
            self.idle.append(self)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.idle:
            self.idle.remove(self)
        self._end(Outcome.CONNECTION)

    def leave(self) -> None:
        """Close the connection, leaving a request in flight unanswered."""
        self.run = None
        self._end(Outcome.UNANSWERED)
        self.transport.abort()

    def _give_up(self) -> None:
        self._end(Outcome.TIMEOUT)
        self.transport.close()

    def _end(self, outcome: int) -> None:
        if self.run is not None:
            self.run.end(self.number, outcome, b"".join(self.body))
            self.run = None
        if self.timer is not None:
            self.timer.cancel()


async def _send_all(
    workload: Workload,
    arrivals_s: FloatArray,
    patience_s: FloatArray,
    stop_early: Callable[[Run], bool],
    port: int,
) -> Run:
    loop = asyncio.get_running_loop()
    head = f"POST {workload.path} HTTP/1.1\r\nHost: {HOST}:{port}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: "
    requests = [head.encode() + b"%d\r\n\r\n" % len(body) + body for body in workload.bodies]
    idle: list[_Connection] = []
    connections: list[_Connection] = []
    count = arrivals_s.size
    run = Run(time.perf_counter() + 0.1, Records.begin(arrivals_s), [b""] * count)
    opening: set[asyncio.Task[None]] = set()

    async def open_and_send(number: int) -> None:
        try:
            _, connection = await loop.create_connection(lambda: _Connection(idle), HOST, port)
        except OSError:
            run.end(number, Outcome.CONNECTION)
            return
        connections.append(connection)
        connection.send(run, number, requests[number % len(requests)], patience_s[number])

    async def send_when_due() -> None:
        checked_s = run.start_s
        for number, due_s in enumerate(arrivals_s.tolist()):
            wait_s = run.start_s + due_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            if idle:
                request = requests[number % len(requests)]
                idle.pop().send(run, number, request, patience_s[number])
            else:
                task = loop.create_task(open_and_send(number))
                opening.add(task)
                task.add_done_callback(opening.discard)
            if time.perf_counter() > checked_s + _CHECK_EVERY_S:
                checked_s = time.perf_counter()
                if stop_early(run):
                    return
        while np.isnan(run.records.finished_s).any() and not stop_early(run):
            await asyncio.sleep(0.02)

    try:
        await send_when_due()
    finally:
        await _close(opening, connections)
    return run


async def _close(opening: set[asyncio.Task[None]], connections: list[_Connection]) -> None:
    """Close all connections, as uvloop requires before its loop is closed."""
    for task in list(opening):
        task.cancel()
    await asyncio.gather(*opening, return_exceptions=True)
    for connection in connections:
        connection.leave()
    await asyncio.sleep(0.01)


def open_loop(
    workload: Workload,
    arrivals_s: FloatArray,
    patience_s: FloatArray | None = None,
    stop_early: Callable[[Run], bool] = lambda run: False,
    port: int = PORT,
) -> Run:
    """Send requests when they are due.

    Parameters
    ----------
    workload : Workload
        Its requests are sent in turn.
    arrivals_s : ndarray of float, shape (n,)
        When each request is due, ascending, in seconds from the start.
    patience_s : ndarray of float, shape (n,), optional
        How long after that its client closes the connection; 10 s by default.
    stop_early : callable
        Called from time to time; the run ends at once when it returns True.
    port : int
        Port of the server on this machine.

    Returns
    -------
    Run
        With checked answers.
    """
    if patience_s is None:
        patience_s = np.full(arrivals_s.size, PATIENCE_S)
    run = uvloop.run(_send_all(workload, arrivals_s, patience_s, stop_early, port))
    outcome, size = run.records.outcome, len(workload.bodies)
    for number in np.flatnonzero(outcome == Outcome.OK).tolist():
        if not workload.is_right(number % size, run.answers[number]):
            outcome[number] = Outcome.WRONG
    return run
