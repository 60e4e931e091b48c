"""A small HTTP file server that can be made to misbehave."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Behavior:
    """The faults of the server with weights; a test may change them while the server runs."""

    #: Answer every request with this status.
    status: int | None = None
    #: Close the connection after so many bytes of a body.
    cut_after: int | None = None
    #: Bytes by which HEAD overstates the size.
    announced_extra: int = 0
    #: Serve these bytes instead, with an entity tag of their own, after so many GETs.
    replacement: bytes | None = None
    replace_after: int = 0
    #: Requests wait until it is set; `hanging` counts them.
    hang: threading.Event | None = None
    hanging: int = 0
    ranges: list[tuple[int, int]] = field(default_factory=list)


@contextmanager
def http_files(root: Path):
    """Serve a folder on localhost; yield its URL and its behavior."""
    behavior = Behavior()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(root, behavior))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", behavior
    finally:
        if behavior.hang is not None:
            behavior.hang.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(root: Path, behavior: Behavior):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def do_HEAD(self):
            self.answer(with_body=False)

        def do_GET(self):
            self.answer(with_body=True)

        def answer(self, with_body):
            path = root / self.path.lstrip("/")
            weights = path.suffix == ".safetensors"
            if not path.is_file():
                self.send_error(404)
                return
            if weights and with_body and behavior.hang is not None:
                behavior.hanging += 1
                behavior.hang.wait(60)
            if weights and with_body and behavior.status is not None:
                self.send_error(behavior.status)
                return
            body, tag = path.read_bytes(), '"1"'
            changed = len(behavior.ranges) >= behavior.replace_after
            if weights and behavior.replacement is not None and changed:
                body, tag = behavior.replacement, '"2"'
            if self.headers.get("If-Match", tag) != tag:
                self.send_error(412)
                return
            self.reply(body, tag, weights, with_body)

        def reply(self, body, tag, weights, with_body):
            size = len(body)
            first, last = 0, size - 1
            wanted = self.headers.get("Range")
            if wanted and with_body:
                first, last = (int(part) for part in wanted.removeprefix("bytes=").split("-"))
                last = min(last, size - 1)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            else:
                self.send_response(200)
            if weights and with_body:
                behavior.ranges.append((first, last))
            length = last - first + 1
            extra = behavior.announced_extra if weights and not with_body else 0
            self.send_header("Content-Length", str(length + extra))
            self.send_header("ETag", tag)
            self.send_header("Last-Modified", "Sun, 22 Nov 2026 00:00:00 GMT")
            self.end_headers()
            if with_body:
                part = body[first : last + 1]
                if weights and behavior.cut_after is not None:
                    part = part[: behavior.cut_after]
                    self.close_connection = True
                self.wfile.write(part)

    return Handler
