"""A replica that HAProxy reaches over a Unix socket."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer

from deployments.haproxy.replica_sockets import open_socket

ANSWER = b"over Unix"


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


@contextmanager
def unix_replica(port: int) -> Iterator[None]:
    """Answer on the Unix socket of a port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(ANSWER)))
            self.end_headers()
            self.wfile.write(ANSWER)

        def log_message(self, *args: object) -> None:
            pass

    listener = open_socket(port)
    assert listener is not None
    server = _Server("", Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    listener.listen()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
