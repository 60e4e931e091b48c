"""A server that sends the same bytes to whoever connects, and closes the connection."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: What no client should take for a service: another protocol, and an answer that ends early.
NO_ANSWERS = {
    "ssh": b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
    "truncated": b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"sl',
}


@contextmanager
def sending(content: bytes) -> Iterator[str]:
    """Send `content` to each client once it has asked something; yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # closed
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(content)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
