"""Closed-loop clients for `event_loop_costs`, as a separate process.

``python closed_loop.py PORT CONNECTIONS < REQUEST`` keeps one request in flight on each connection
until the process is stopped.
"""

import selectors
import socket
import sys
from typing import cast

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


def answer_length(received: bytes) -> int | None:
    """Return the length of the HTTP answer at the start of `received`, or None if incomplete."""
    head, end, _ = received.partition(_HEAD_END)
    if not end:
        return None
    for line in head.lower().split(b"\r\n"):
        if line.startswith(_LENGTH):
            return len(head) + len(_HEAD_END) + int(line[len(_LENGTH) :])
    raise ValueError("the answer has no content-length")


def run(port: int, connections: int, request: bytes) -> None:
    selector = selectors.DefaultSelector()
    received: dict[socket.socket, bytes] = {}
    for _ in range(connections):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ)
        received[connection] = b""
        connection.sendall(request)
    while received:
        for key, _ in selector.select():
            connection = cast(socket.socket, key.fileobj)
            data = connection.recv(1 << 16)
            if not data:
                selector.unregister(connection)
                del received[connection]
                continue
            received[connection] += data
            length = answer_length(received[connection])
            if length is not None and len(received[connection]) >= length:
                received[connection] = received[connection][length:]
                connection.sendall(request)


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer.read())
