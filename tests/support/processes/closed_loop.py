"""A client that keeps a request on each of many connections, as `wrk` does, and times each one."""

import asyncio
import json
import multiprocessing
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import uvloop

_CONNECT_AT_ONCE = 50


@dataclass
class Seen:
    """What clients saw.

    Attributes
    ----------
    response_times_s : mapping of int to list of float
        By HTTP status, 0 for requests without an answer; each from when it was sent.
    """

    response_times_s: dict[int, list[float]] = field(default_factory=dict)

    def count(self, status: int) -> int:
        """Return the number of answers with a status."""
        return len(self.response_times_s.get(status, ()))


def closed_loop(
    host: str, port: int, path: str, content: Mapping[str, Any], connections: int, duration_s: float
) -> Seen:
    """Send requests from a process of its own.

    Parameters
    ----------
    host, port, path
        Where to send them.
    content : mapping
        The JSON of each request.
    connections : int
        Each sends a request as soon as it has the answer to the one before.
    duration_s : float
    """
    data = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n\r\n"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (host, port, head.encode() + data, connections, duration_s))


def _run(host: str, port: int, request: bytes, connections: int, duration_s: float) -> Seen:
    return uvloop.run(_send(host, port, request, connections, duration_s))


async def _send(host: str, port: int, request: bytes, connections: int, duration_s: float) -> Seen:
    seen = Seen()
    loop = asyncio.get_running_loop()
    clients = []
    for start in range(0, connections, _CONNECT_AT_ONCE):
        clients += await asyncio.gather(
            *(
                loop.create_connection(lambda: _Client(request, seen), host, port)
                for _ in range(start, min(start + _CONNECT_AT_ONCE, connections))
            )
        )
    await asyncio.sleep(duration_s)
    for transport, client in clients:
        client.stop()
        transport.close()
    return seen


class _Client(asyncio.Protocol):
    def __init__(self, request: bytes, seen: Seen) -> None:
        self._request, self._seen = request, seen
        self._answer = b""
        self._sent_s = 0.0
        self._stopped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop has transports of its own.
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._sent_s = time.monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        end = self._answer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._answer[:end].lower() + b"\r\n"
        at = head.index(b"\r\ncontent-length: ") + 18
        if len(self._answer) < end + 4 + int(head[at : head.index(b"\r", at)]):
            return
        self._count(int(head[9:12]))
        self._answer = b""
        if not self._stopped:
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._stopped:
            self._count(0)

    def stop(self) -> None:
        """Count the request without an answer, and send no more."""
        self._stopped = True
        self._count(0)

    def _count(self, status: int) -> None:
        times_s = self._seen.response_times_s.setdefault(status, [])
        times_s.append(time.monotonic() - self._sent_s)
