"""Replicas with roles behind a real HAProxy and its supervisor, and Serve's own proxy; no Ray."""

import asyncio
import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from autoscaler.standbys import RolesPublisher, roles_key
from deployments.control.standby_role import StandbyRole
from deployments.haproxy.stats import HaproxyStats
from tests.support.autoscaling.stores import Store
from tests.support.haproxy.configs import ray_config
from tests.support.ports import free_port
from tests.support.readme import ROOT
from tests.support.waiting import LIMIT_S, wait_for

_HEALTH_PATH = "/-/healthz"


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of checks that HAProxy breaks off."""


class Server:
    """An HTTP server on a thread, until `close`."""

    def __init__(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body = server.answer(self.path)
                with suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    if server.is_closed:
                        self.send_header("Connection", "close")
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.is_closed = False
        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        poll = {"poll_interval": 0.01}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs=poll)
        self._thread.start()

    def answer(self, path: str) -> tuple[int, bytes]:
        raise NotImplementedError

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class Replica(Server):
    """A replica that answers with its name, and follows its role as the real one does."""

    def __init__(self, name: str, store: Store, admin_socket: Path) -> None:
        super().__init__()
        self.name = name
        key = roles_key("app", "Model")
        haproxy = HaproxyStats(f"replica-{self.port}", admin_socket)
        self.role = StandbyRole(name, lambda: store.kept.get(key), haproxy.nobody_serves)
        asyncio.run(self.role.configure(1))
        self._following = threading.Thread(target=lambda: asyncio.run(self._follow()))
        self._following.start()

    async def _follow(self) -> None:
        while not self.is_closed:
            await asyncio.sleep(self.role.period_s)
            await self.role.follow()

    def answer(self, path: str) -> tuple[int, bytes]:
        if path == _HEALTH_PATH and self.role.standby:
            return 503, b"STANDBY"
        return 200, self.name.encode()

    def close(self) -> None:
        super().close()
        self._following.join()


class ServeProxy(Server):
    """Serve's own proxy: it sends a request to any replica that is up."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas = replicas
        super().__init__()

    def answer(self, path: str) -> tuple[int, bytes]:
        if path == _HEALTH_PATH:
            return 200, b"success"
        for replica in self._replicas:
            if not replica.is_closed:
                return replica.answer(path)
        return 503, b"none"


class StandbyFleet:
    """Two replicas, a publisher of their roles, and HAProxy in front of them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        store = Store()
        self._publisher = RolesPublisher("app", "Model", store)
        self._publisher.is_loaded()
        self.publish(1, 1)
        self.replicas = [Replica(name, store, folder / "admin.sock") for name in ("a", "b")]
        proxy = ServeProxy(self.replicas)
        for server in (*self.replicas, proxy):
            stack.callback(server.close)
        ports = (free_port(), free_port(), free_port())
        self._port = ports[1]
        config = folder / "haproxy.cfg"
        servers = [replica.port for replica in self.replicas]
        config.write_text(ray_config(folder, "127.0.0.1", ports, servers, proxy.port))
        command = [sys.executable, "-m", "deployments.haproxy.supervisor", "-db", "-f", str(config)]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        if not wait_for(self._is_open):
            raise AssertionError((folder / "log").read_text())

    def _is_open(self) -> bool:
        with suppress(OSError):
            return bool(self.get())
        return False

    def publish(self, replicas: int, standbys: int) -> None:
        """Tell the replicas who serves: the first ones."""
        self._publisher.publish(time.time(), ["a", "b"], replicas, standbys)

    def get(self) -> tuple[int, str]:
        """Send a request; return its status, and who answered."""
        client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT_S)
        try:
            client.request("GET", "/")
            answer = client.getresponse()
            return answer.status, answer.read().decode()
        finally:
            client.close()

    def answering(self, requests: int = 20) -> set[tuple[int, str]]:
        """Return who answers, and with what status."""
        return {self.get() for _ in range(requests)}


@contextmanager
def standby_fleet(folder: Path) -> Iterator[StandbyFleet]:
    """Run two replicas, one of which stands by, behind HAProxy."""
    with ExitStack() as stack:
        yield StandbyFleet(folder, stack)
