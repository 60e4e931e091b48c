"""HTTP servers on threads, in the place of replicas and of Serve's own proxy."""

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.waiting import LIMIT_S

Answer = tuple[int, bytes, Mapping[str, str]]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def do_GET(self) -> None:
        status, body, fields = self.server.answer(self.path, self.headers)
        with suppress(OSError):
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **fields}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A server that answers with its port, unless it is told to be silent, until it is closed.

    It listens on a port of its own, or on the `listener`.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that come at once

    def __init__(self, listener: socket.socket | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=listener is None)
        if listener is not None:
            self.socket.close()
            self.socket = listener
            listener.listen()
        self.connections = set[socket.socket]()
        self.is_closed = self._dies = False
        self._spoken = threading.Event()
        self._spoken.set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self.server_port

    def answer(self, path: str, fields: Mapping[str, str]) -> Answer:
        if self._dies:
            self.close()
        self._spoken.wait(LIMIT_S)
        return 200, b"%d" % self.port, {}

    def fall_silent(self) -> None:
        self._spoken.clear()

    def speak(self) -> None:
        self._spoken.set()

    def die_at_next_request(self) -> None:
        self._dies = True

    def close(self) -> None:
        """End as a killed process does, with all its connections."""
        if not self.is_closed:
            self.is_closed = True
            self.speak()
            self.shutdown()
            self._thread.join()
            self.server_close()
            for connection in self.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        """Ignore connections that HAProxy breaks off."""
