"""Strangers: clients that misbehave while the bystanders send their requests."""

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from benchmarks.resilience.load import Bystanders, Load, Target
from benchmarks.resilience.run import Run


def exchange(target: Target, request: bytes, timeout_s: float = 5.0) -> bytes:
    """Send bytes on a connection of their own; return all that comes back in time."""
    received = bytearray()
    with suppress(OSError), _connect(target, timeout_s) as client:
        client.sendall(request)
        until_s = time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0:
            client.settimeout(left_s)
            part = client.recv(1 << 16)
            if not part:
                break
            received += part
            if _complete(received):
                client.settimeout(0.2)
                with suppress(TimeoutError):
                    received += client.recv(1 << 16)
                break
    return bytes(received)


def slow_headers(run: Run) -> None:
    """Make 300 clients send a byte of their headers each second."""
    _trickle(run, 300, b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"a")


def slow_bodies(run: Run) -> None:
    """Make 100 clients send a byte of their bodies each second."""
    head = f"POST /v2/models/{run.service.target.model}/infer HTTP/1.1\r\nHost: localhost\r\n"
    _trickle(run, 100, head.encode() + b"Content-Length: 3000000\r\n\r\n", b" ")


def idle_connections(run: Run) -> None:
    """Make 2,000 clients connect and send nothing."""
    _trickle(run, 2000, b"", b"")


def churn(run: Run) -> None:
    """Open 200 connections a second, each for one request."""
    request = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    _statuses(run, lambda: request, every_s=0.005)


def garbage(run: Run) -> None:
    """Open 20 connections a second and send random bytes."""
    draw = random.Random(1)
    _statuses(run, lambda: draw.randbytes(draw.randrange(1, 4096)) + b"\r\n\r\n", every_s=0.05)


def overload(run: Run) -> None:
    """Send ten times the bystanders' load, by clients of the same kind."""
    run.begin()
    flood = Bystanders(run.service.target, Load(800.0, 0, 0, seed=9))
    flood.start()
    time.sleep(run.misbehave_s)
    flood.end()
    counts = Counter(one.outcome.value for one in flood.requests)
    run.notes.append("of the others: " + ", ".join(f"{n} {what}" for what, n in counts.items()))


def _connect(target: Target, timeout_s: float) -> socket.socket:
    return socket.create_connection((target.host, target.port), timeout=timeout_s)


def _complete(received: bytearray) -> bool:
    """Return whether one whole answer has come."""
    head, found, rest = received.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if found and line.startswith(b"content-length:"):
            return len(rest) >= int(line.partition(b":")[2])
    return False


def _trickle(run: Run, count: int, beginning: bytes, more: bytes) -> None:
    """Hold `count` connections, and send `more` on each of them every second."""
    run.begin()
    clients = []
    for _ in range(count):
        with suppress(OSError):
            client = _connect(run.service.target, 2.0)
            client.sendall(beginning)
            clients.append(client)
    until_s = run.fault_s + run.misbehave_s
    closed = 0
    while time.monotonic() < until_s:
        time.sleep(1.0)
        for client in list(clients):
            try:
                if more:
                    client.sendall(more)
            except OSError:
                closed += 1
                clients.remove(client)
    run.notes.append(f"{count - closed - len(clients)} were not let in, {closed} were closed")
    for client in clients:
        client.close()


def _statuses(run: Run, request: Callable[[], bytes], every_s: float) -> None:
    """Send requests on connections of their own, and note how they were answered."""
    run.begin()
    seen: Counter[str] = Counter()

    def send(content: bytes) -> None:
        answer = exchange(run.service.target, content)
        seen[answer.split(b" ", 2)[1].decode("latin-1")[:3] if answer else "nothing"] += 1

    senders: list[threading.Thread] = []
    next_s = time.monotonic()
    while next_s < run.fault_s + run.misbehave_s:
        time.sleep(max(0.0, next_s - time.monotonic()))
        next_s += every_s
        senders = [sender for sender in senders if sender.is_alive()]
        if len(senders) < 100:
            senders.append(threading.Thread(target=send, args=(request(),), daemon=True))
            senders[-1].start()
    for sender in senders:
        sender.join(10)
    run.notes.append("answered " + ", ".join(f"{n} × {status}" for status, n in seen.items()))
