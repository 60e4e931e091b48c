"""The bystanders: an open loop of requests whose every answer is known, on a thread of its own.

Each request carries a number of its own, and the model echoes it: an answer that belongs to another
request is seen. Most requests share keep-alive connections; some clients hold a connection of their
own and use it every few seconds; and some bodies are large.
"""

import asyncio
import itertools
import json
import random
import threading
import time
from collections import deque
from dataclasses import dataclass

from benchmarks.resilience.tally import Outcome, Request, outcome_of

#: The size of a 224×224×3 image in FP32.
LARGE_BODY_BYTES = 224 * 224 * 3 * 4
_QUARTER = 0.25  # exact in FP32
#: No request is like another, also of another experiment: replicas remember what others died of.
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Load:
    """The bystanders' load: requests over shared connections, and clients that idle in between.

    One request in `large_every` has a body of `LARGE_BODY_BYTES`; 0 for none.
    """

    rate_per_s: float = 80.0
    large_every: int = 50
    idle_clients: int = 60
    idle_s: float = 10.0
    timeout_s: float = 20.0
    seed: int = 0


@dataclass(frozen=True)
class Target:
    """Where requests go, and when they are late."""

    host: str
    port: int
    model: str
    sla_s: float
    percentile: float


def request_bytes(target: Target, value: float, body_bytes: int = 0) -> bytes:
    """Return a request to echo `value`, its body filled up with blanks to `body_bytes`."""
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    body = json.dumps({"inputs": [tensor]}).encode().ljust(body_bytes)
    head = (
        f"POST /v2/models/{target.model}/infer HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time, and notices bytes nobody asked for.

    Attributes
    ----------
    unexpected : int
        Times that bytes came without a request.
    """

    def __init__(self) -> None:
        self.closed = False
        self.unexpected = 0
        self.answered_s = time.monotonic()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[tuple[int, bytes]] | None = None
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Complete the answer, or count the intrusion."""
        if self._waiter is None or self._waiter.done():
            self.unexpected += 1
            self.close()
            return
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        if len(rest) >= length:
            if len(rest) > length:
                self.unexpected += 1
            status = int(head.split(b" ", 2)[1])
            self._waiter.set_result((status, bytes(rest[:length])))
            if b"connection: close" in head.lower():
                self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that waits."""
        self.closed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionResetError("closed before the answer"))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the body of its answer."""
        assert self._transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self._received.clear()
        self._transport.write(request)
        return await self._waiter

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.close()


class Bystanders(threading.Thread):
    """Sends load from `start` until `end`.

    Attributes
    ----------
    doubled : int
        Answers that nobody had asked for.
    lost : list of str
        How each request without an answer ended.
    """

    def __init__(self, target: Target, load: Load) -> None:
        super().__init__(daemon=True)
        self.requests: list[Request] = []
        self.doubled = 0
        self.lost: list[str] = []
        self._target = target
        self._load = load
        self._ending = threading.Event()
        self._idle: deque[Connection] = deque()

    def run(self) -> None:
        """Send until `end` is called; then wait for what is in flight."""
        asyncio.run(self._run())

    def end(self) -> None:
        """Send no more, and wait for the last answers."""
        self._ending.set()
        self.join()

    async def _run(self) -> None:
        draw = random.Random(self._load.seed)
        tasks = {asyncio.create_task(self._client(draw)) for _ in range(self._load.idle_clients)}
        due_s = time.monotonic()
        while not self._ending.is_set():
            due_s += draw.expovariate(self._load.rate_per_s)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            task = asyncio.create_task(self._send_shared(due_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        for connection in self._idle:
            connection.close()

    async def _client(self, draw: random.Random) -> None:
        connection: Connection | None = None
        next_s = time.monotonic() + draw.uniform(0, self._load.idle_s)
        while not self._ending.is_set():
            if time.monotonic() < next_s:
                await asyncio.sleep(0.1)
                continue
            connection = await self._send(connection, next_s)
            next_s = max(time.monotonic(), next_s + self._load.idle_s)
        if connection is not None:
            connection.close()

    async def _send_shared(self, due_s: float) -> None:
        connection = None
        while self._idle and (connection is None or connection.closed):
            connection = self._idle.pop()
        connection = await self._send(connection, due_s)
        if connection is not None:
            self._idle.append(connection)

    async def _send(self, connection: Connection | None, due_s: float) -> Connection | None:
        """Send one request; return the connection if it can be used again."""
        number, every = next(_numbers), self._load.large_every
        size = LARGE_BODY_BYTES if every and number % every == 0 else 0
        value = _QUARTER * number
        status, right = 0, False
        target, begun_s = self._target, time.monotonic()
        try:
            async with asyncio.timeout(self._load.timeout_s):
                if connection is None or connection.closed:
                    loop = asyncio.get_running_loop()
                    _, connection = await loop.create_connection(
                        Connection, target.host, target.port
                    )
                status, body = await connection.ask(request_bytes(target, value, size))
                right = status == 200 and json.loads(body)["outputs"][0]["data"] == [value]
        except (OSError, TimeoutError) as error:
            outcome = Outcome.LOST
            idle_s = begun_s - connection.answered_s if connection else 0.0
            self.lost.append(
                f"{error!r} after {time.monotonic() - begun_s:.3f} s, on a connection that had "
                f"been idle for {idle_s:.1f} s"
            )
        except (ValueError, KeyError, IndexError, TypeError):
            outcome = Outcome.WRONG
        else:
            outcome = outcome_of(status, right, time.monotonic() - due_s, target.sla_s)
        self.requests.append(Request(due_s, time.monotonic(), outcome, status))
        if connection is None:
            return None
        connection.answered_s = time.monotonic()
        self.doubled += connection.unexpected
        connection.unexpected = 0
        if outcome is Outcome.LOST:
            connection.close()
        return None if connection.closed else connection
