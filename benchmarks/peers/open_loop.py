"""An open loop: requests leave when they are due, whether or not the server keeps up.

A client on asyncio that costs about 50 µs per request, as it shares the machine with the server it
measures: requests are bytes made ahead, answers are kept, and checked when all is over.
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

from benchmarks.peers.protocols import Questions
from benchmarks.peers.servers import HOST, PORT
from loadtests.records import Outcome, Records

FloatArray = NDArray[np.float64]
PATIENCE_S = 10.0
_LOOK_EVERY_S = 0.25


@dataclass(eq=False)
class Run:
    """A run, in progress or over.

    Attributes
    ----------
    start_s : float
        When it began, by ``time.perf_counter``; the times in `records` count from here.
    records : Records
        What became of each request. Answers with status 200 are `Outcome.OK` until checked.
    answers : list of bytes
        Their bodies, empty where there is none.
    """

    start_s: float
    records: Records
    answers: list[bytes]

    def end(self, number: int, outcome: int, body: bytes = b"") -> None:
        """Write down how a request ended."""
        self.records.outcome[number] = outcome
        self.records.finished_s[number] = time.perf_counter() - self.start_s
        self.answers[number] = body


@dataclass(eq=False)
class _Connection(asyncio.Protocol):
    """A connection, which carries one request at a time."""

    idle: list["_Connection"]
    run: Run | None = None
    number: int = -1
    body: list[bytes] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are registered as no kind of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpResponseParser(self)

    def send(self, run: Run, number: int, request: bytes, patience_s: float) -> None:
        """Send a request whose end `run` is told."""
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
        """Take a part of an answer."""
        self.body.append(body)

    def on_message_complete(self) -> None:
        """Take the end of an answer."""
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
        """Close the connection; a request on its way stays unanswered."""
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
    questions: Questions,
    arrivals_s: FloatArray,
    patience_s: FloatArray,
    hopeless: Callable[[Run], bool],
    port: int,
) -> Run:
    loop = asyncio.get_running_loop()
    head = f"POST {questions.path} HTTP/1.1\r\nHost: {HOST}:{port}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: "
    requests = [head.encode() + b"%d\r\n\r\n" % len(body) + body for body in questions.bodies]
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
        looked_s = run.start_s
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
            if time.perf_counter() > looked_s + _LOOK_EVERY_S:
                looked_s = time.perf_counter()
                if hopeless(run):
                    return
        while np.isnan(run.records.finished_s).any() and not hopeless(run):
            await asyncio.sleep(0.02)

    try:
        await send_when_due()
    finally:
        await _close(opening, connections)
    return run


async def _close(opening: set[asyncio.Task[None]], connections: list[_Connection]) -> None:
    """Leave: uvloop wants every connection closed before its loop is."""
    for task in list(opening):
        task.cancel()
    await asyncio.gather(*opening, return_exceptions=True)
    for connection in connections:
        connection.leave()
    await asyncio.sleep(0.01)


def open_loop(
    questions: Questions,
    arrivals_s: FloatArray,
    patience_s: FloatArray | None = None,
    hopeless: Callable[[Run], bool] = lambda run: False,
    port: int = PORT,
) -> Run:
    """Send requests when they are due.

    Parameters
    ----------
    questions : Questions
        Asked in turn.
    arrivals_s : ndarray of float, shape (n,)
        When each is due, ascending, in seconds from the start.
    patience_s : ndarray of float, shape (n,), optional
        How long after that its client closes the connection; 10 s unless given.
    hopeless : callable
        Asked now and then; where it says yes, the run ends at once.
    port : int
        Of the server, on this machine.

    Returns
    -------
    Run
        With checked answers.
    """
    if patience_s is None:
        patience_s = np.full(arrivals_s.size, PATIENCE_S)
    run = uvloop.run(_send_all(questions, arrivals_s, patience_s, hopeless, port))
    outcome, size = run.records.outcome, len(questions.bodies)
    for number in np.flatnonzero(outcome == Outcome.OK).tolist():
        if not questions.right(number % size, run.answers[number]):
            outcome[number] = Outcome.WRONG
    return run
