"""A node as Ray runs it: it writes a configuration, and starts HAProxy with it."""

import http.client
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from deployments.haproxy.admin_socket import AdminError, ask, process_at
from deployments.haproxy.server_checks import Server as State
from deployments.haproxy.server_checks import parse_servers
from deployments.local.descendants import adopted_orphans, descendants, end_descendants
from tests.support.haproxy.configs import ray_config
from tests.support.haproxy.servers import Server
from tests.support.ports import free_port
from tests.support.readme import ROOT
from tests.support.waiting import LIMIT_S, has_ended, wait_for


@contextmanager
def new_node(folder: Path) -> Iterator["Node"]:
    """Yield a node whose processes and servers end with the context."""
    before = descendants()
    with adopted_orphans(), ExitStack() as stack:
        stack.callback(end_descendants, before)  # HAProxy outlives a supervisor that is killed
        node = Node(folder, stack)
        stack.callback(node.close)
        yield node


class Node:
    """HAProxy's supervisor, its replicas, and perhaps Serve's own proxy."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.ports = (free_port(), free_port(), free_port())
        self.replicas: list[Server] = []
        self.proxy: Server | None = None
        self.environment: dict[str, str] = {}
        self.inter = "500ms"
        self.open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self._stack = stack

    def start(self, *arguments: str, routes: bool = True, extra: str = "") -> psutil.Process:
        """Start the supervisor, and wait until it says that it is the one in charge."""
        process = self.launch(*arguments, routes=routes, extra=extra)
        assert wait_for(lambda: self.pid() == process.pid), self.log()
        return process

    def reload(self, old: psutil.Process, routes: bool = True) -> psutil.Process:
        admin_socket = str(self.folder / "admin.sock")
        return self.start("-sf", str(old.pid), "-x", admin_socket, routes=routes)

    def launch(self, *arguments: str, routes: bool = True, extra: str = "") -> psutil.Process:
        servers = [replica.port for replica in self.replicas] if routes else None
        proxy = self.proxy and self.proxy.port
        config = self.folder / "haproxy.cfg"
        text = ray_config(self.folder, "127.0.0.1", self.ports, servers, proxy, self.inter)
        config.write_text(text + extra)
        command = ["prlimit", f"--nofile={self.open_files}", sys.executable]
        command += ["-m", "deployments.haproxy.supervisor"]
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                [*command, "-db", "-f", str(config), "-dR", *arguments],
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stderr=log,
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return psutil.Process(process.pid)

    def close(self) -> None:
        for server in filter(None, (*self.replicas, self.proxy)):
            server.close()

    def pid(self) -> int | None:
        """Return what ``show info`` tells, as Ray asks it."""
        return process_at(self.folder / "admin.sock")

    def servers(self) -> list[State]:
        with suppress(AdminError):
            table = ask(self.folder / "admin.sock", b"show stat -1 4 -1", LIMIT_S)
            return parse_servers(table.decode())
        return []

    def listens(self) -> bool:
        """Return whether anything takes connections, as a process does until it has quite ended."""
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.ports[1])) == 0

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.ports[1], timeout=LIMIT_S)

    def get(self, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a request, perhaps with a body that the replica never reads."""
        client = self.connect()
        try:
            client.request("GET", "/", body)
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def haproxies(self) -> list[psutil.Process]:
        """Return the processes of HAProxy that run with a configuration of the folder."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                if words[1:3] == ["-db", "-f"] and words[3].startswith(f"{self.folder}/haproxy-"):
                    found.append(process)
        return found


def haproxy_of(supervisor: psutil.Process) -> psutil.Process:
    """Return its HAProxy, once it has one: one that ended is replaced."""
    found: list[psutil.Process] = []

    def there_is_one() -> bool:
        with suppress(psutil.Error):  # it ends just now
            found[:] = [
                one
                for one in supervisor.children()
                if one.name() == "haproxy" and not has_ended(one)
            ]
        return len(found) == 1

    assert wait_for(there_is_one), found
    return found[0]
