"""An HTTP server that echoes numbers, and a workload for it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from benchmarks.peers.protocols import Objects, Workload
from tests.support.waiting import LIMIT_S


def echo_workload(count: int) -> Workload:
    """Return requests with the values 1 to `count`."""
    values = np.arange(1, count + 1, dtype=np.float32)[:, np.newaxis]
    return Workload("emulated", Objects("/"), {"input": values})


class _Echo(BaseHTTPRequestHandler):
    """Echoes each value, except: 1 to 3 wait for `go`, 5 is refused, 9 gets a wrong answer."""

    protocol_version = "HTTP/1.1"
    go: threading.Event

    def do_POST(self) -> None:
        (value,) = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        if value <= 3:
            self.go.wait(LIMIT_S)
        body = json.dumps({"output": [10 if value == 9 else value]}).encode()
        self.send_response(503 if value == 5 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError):  # the client may have left
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def echo_server(go: threading.Event) -> Iterator[int]:
    """Serve until the context ends, and yield the port; answers 1 to 3 wait until `go` is set."""
    handler = type("Handler", (_Echo,), {"go": go})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        go.set()
        server.shutdown()
        thread.join()
        server.server_close()
