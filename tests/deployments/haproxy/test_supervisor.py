"""A real HAProxy under its supervisor, with the arguments and configuration that Ray gives it."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from deployments.haproxy.admin_socket import AdminError, ask
from deployments.haproxy.command import HELD_MS
from deployments.haproxy.ray_config import UNAVAILABLE
from deployments.haproxy.server_checks import Server, parse_servers
from deployments.local.descendants import adopted_orphans, descendants, end_descendants
from tests.support.haproxy.configs import ray_config
from tests.support.haproxy.unix_replica import ANSWER, unix_replica
from tests.support.ports import free_port
from tests.support.readme import ROOT
from tests.support.waiting import LIMIT_S, has_ended, wait_for

pytestmark = pytest.mark.slow


#: For how long a request is held where that is limited: longer than a busy machine takes to answer.
HELD_S = 1.0
#: As Ray writes it, but in a section of its own.
DRAINING = (
    "backend unused\n acl healthcheck path -i /-/healthz\n http-request return status 503 "
    'content-type text/plain string "This node is being drained." if healthcheck\n'
)


class Replica:
    """A server that answers with its port, unless it is told to be silent."""

    def __init__(self) -> None:
        silent = self.silent = threading.Event()
        connections = self.connections = set[socket.socket]()
        dying = self._dying = threading.Event()
        self.spoken = threading.Event()
        self.spoken.set()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                connections.add(self.connection)

            def do_GET(self) -> None:
                if silent.is_set():
                    replica.spoken.wait(LIMIT_S)
                answer = str(replica.port).encode()
                with suppress(OSError):
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

            def parse_request(self) -> bool:
                if dying.is_set():
                    replica.close()
                    return False
                return super().parse_request()

            def log_message(self, *args: object) -> None:
                pass

        replica = self
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def fall_silent(self) -> None:
        self.spoken.clear()
        self.silent.set()

    def speak(self) -> None:
        self.silent.clear()
        self.spoken.set()

    def die_at_next_request(self) -> None:
        self._dying.set()

    def close(self) -> None:
        """End as a killed process does, with all its connections."""
        self.speak()
        self._server.shutdown()
        self._server.server_close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Node:
    """What Ray does on a node: writes a configuration, and starts HAProxy with it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.ports = (free_port(), free_port(), free_port())
        self.replicas = [Replica(), Replica()]
        self.proxy: Replica | None = None
        self.environment: dict[str, str] = {}
        self._stack = stack
        for replica in self.replicas:
            stack.callback(replica.close)

    def start(self, *arguments: str, routes: bool = True) -> psutil.Process:
        """Start the supervisor, and wait until it says that it is the one in charge."""
        process = self.launch(*arguments, routes=routes)
        assert wait_for(lambda: self.pid() == process.pid)
        return process

    def launch(self, *arguments: str, routes: bool = True, extra: str = "") -> psutil.Process:
        servers = [replica.port for replica in self.replicas] if routes else None
        proxy = self.proxy and self.proxy.port
        config = self.folder / "haproxy.cfg"
        config.write_text(ray_config(self.folder, "127.0.0.1", self.ports, servers, proxy) + extra)
        command = [sys.executable, "-m", "deployments.haproxy.supervisor"]
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

    def pid(self) -> int:
        """Return what ``show info`` tells, as Ray asks it."""
        with suppress(AdminError):
            for line in self._ask(b"show info").splitlines():
                if line.startswith(b"Pid: "):
                    return int(line[5:])
        return 0

    def listens(self) -> bool:
        """Return whether anything takes connections, as a process does until it has quite ended."""
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.ports[1])) == 0

    def get(self, timeout_s: float = LIMIT_S, body: bytes | None = None) -> tuple[int, bytes]:
        """Ask for the port of a replica, perhaps with a body that it never reads."""
        client = http.client.HTTPConnection("127.0.0.1", self.ports[1], timeout=timeout_s)
        try:
            client.request("GET", "/", body)
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()

    def servers(self) -> list[Server]:
        return parse_servers(self._ask(b"show stat -1 4 -1").decode())

    def _ask(self, command: bytes) -> bytes:
        return ask(self.folder / "admin.sock", command, LIMIT_S)

    def log(self) -> str:
        return (self.folder / "log").read_text()


def haproxies(folder: Path) -> list[psutil.Process]:
    """Return the processes of HAProxy that run with a configuration of the folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if words[1:3] == ["-db", "-f"] and words[3].startswith(f"{folder}/haproxy-"):
                found.append(process)
    return found


def haproxy_of(supervisor: psutil.Process) -> psutil.Process:
    return only_child(supervisor, lambda name: name == "haproxy")


def deputy_of(supervisor: psutil.Process) -> psutil.Process:
    return only_child(supervisor, lambda name: name != "haproxy")


def only_child(supervisor: psutil.Process, is_it: Callable[[str], bool]) -> psutil.Process:
    """Return its child of that name, once it has one: one that ended is replaced."""
    found: list[psutil.Process] = []

    def there_is_one() -> bool:
        with suppress(psutil.Error):  # it ends just now
            found[:] = [
                one for one in supervisor.children() if is_it(one.name()) and not has_ended(one)
            ]
        return len(found) == 1

    assert wait_for(there_is_one), found
    return found[0]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    before = descendants()
    # A supervisor that is killed at the end of a test has a deputy, too.
    with adopted_orphans(), ExitStack() as stack:
        stack.callback(end_descendants, before)
        yield Node(tmp_path, stack)


def test_replicas_of_the_node_are_reached_over_unix_sockets(node: Node) -> None:
    """One that listens on none is reached over TCP."""
    with unix_replica(node.replicas[0].port):
        node.start()
        others = str(node.replicas[1].port).encode()
        assert wait_for(lambda: {node.get()[1] for _ in range(20)} == {ANSWER, others})


def test_a_killed_haproxy_is_back_before_a_client_notices(node: Node) -> None:
    supervisor = node.start()
    first = haproxy_of(supervisor)
    first.kill()
    # Nobody is refused: the socket's queue holds those who connect meanwhile.
    assert [node.get()[0] for _ in range(20)] == [200] * 20
    assert haproxy_of(supervisor).pid != first.pid
    assert node.pid() == supervisor.pid
    assert "ended with status -9 and is started again" in node.log()


def test_a_haproxy_that_hangs_is_replaced(node: Node) -> None:
    supervisor = node.start()
    first = haproxy_of(supervisor)
    first.suspend()
    assert node.get()[0] == 200
    assert haproxy_of(supervisor).pid != first.pid


def test_a_reload_loses_no_client_and_the_old_one_ends(node: Node) -> None:
    old = node.start()
    stop = threading.Event()
    statuses: list[int] = []

    def ask_again_and_again() -> None:
        while not stop.is_set():
            statuses.append(node.get()[0])

    client = threading.Thread(target=ask_again_and_again)
    client.start()
    try:
        new = node.start("-sf", str(old.pid), "-x", str(node.folder / "admin.sock"))
        assert wait_for(partial(has_ended, old))
    finally:
        stop.set()
        client.join()
    assert set(statuses) == {200}
    assert haproxies(node.folder) == [haproxy_of(new)]


def test_the_requests_of_a_replica_that_stops_answering_are_sent_on(node: Node) -> None:
    node.start()
    silent, other = node.replicas
    assert wait_for(lambda: [one.failures for one in node.servers()] == [0, 0])
    silent.fall_silent()
    answers = [node.get() for _ in range(10)]
    assert answers == [(200, b"%d" % other.port)] * 10


def test_replicas_that_all_fall_silent_are_not_left_out(node: Node) -> None:
    """As on a machine without a CPU to spare."""
    node.start()
    assert wait_for(lambda: [one.failures for one in node.servers()] == [0, 0])
    for replica in node.replicas:
        replica.fall_silent()
    assert wait_for(lambda: all(one.failures > 3 for one in node.servers()))
    assert all(one.up for one in node.servers())
    for replica in node.replicas:
        replica.speak()
    assert node.get()[0] == 200


@pytest.mark.parametrize("always_served", [True, False])
def test_serves_proxy_may_hold_requests_only_if_there_may_be_no_replicas(
    node: Node, always_served: bool
) -> None:
    node.proxy = Replica()
    node.environment = {HELD_MS: f"http-{'app' if always_served else 'other'}={1e3 * HELD_S:.0f}"}
    refusal = (503, UNAVAILABLE.partition(b"\r\n\r\n")[2])
    answer = (200, b"%d" % node.proxy.port)
    try:
        node.start()
        assert node.get()[1] in [b"%d" % replica.port for replica in node.replicas]
        for replica in node.replicas:
            replica.close()
        # It may know of a replica that HAProxy does not know yet.
        assert wait_for(lambda: node.get() == answer)
        # A new configuration, and with it a new HAProxy, changes nothing.
        node.replicas.clear()
        node.start("-sf", str(node.pid()))
        assert node.get() == answer
        node.proxy.fall_silent()
        if always_served:
            assert node.get() == refusal
            node.proxy.speak()
        else:
            threading.Timer(1.5 * HELD_S, node.proxy.speak).start()
        assert node.get() == answer
        node.replicas.append(Replica())
        node.start("-sf", str(node.pid()))
        assert node.get() == (200, b"%d" % node.replicas[0].port)
    finally:
        node.proxy.close()
        for replica in node.replicas:
            replica.close()


def test_a_kept_connection_gets_an_answer_when_two_replicas_die_at_its_request(node: Node) -> None:
    """Three refusals by each of the dead ones would use up all retries."""
    node.environment = {HELD_MS: f"http-app={1e3 * HELD_S:.0f}"}
    node.start()
    with closing(http.client.HTTPConnection("127.0.0.1", node.ports[1], timeout=LIMIT_S)) as client:

        def ask_again() -> int:
            client.request("GET", "/x")
            answer = client.getresponse()
            answer.read()
            return answer.status

        assert [ask_again() for _ in range(4)] == [200] * 4
        for replica in node.replicas:
            replica.die_at_next_request()
        assert ask_again() == 503


def test_what_a_dying_replica_leaves_and_is_too_large_to_be_sent_again_is_refused(
    node: Node,
) -> None:
    node.start()
    for replica in node.replicas:
        replica.die_at_next_request()
    body = b" " * (4 << 16)  # HAProxy's buffer has 64 KiB
    assert node.get(body=body) == (503, UNAVAILABLE.partition(b"\r\n\r\n")[2])


def test_until_there_are_routes_the_predecessor_serves_on(node: Node) -> None:
    first = node.start()
    # Ray's actor has died, and its successor knows no application yet.
    second = node.start(routes=False)
    assert second.children() == []
    assert node.get()[0] == 200
    third = node.start("-sf", str(second.pid), "-x", str(node.folder / "admin.sock"))
    assert node.get()[0] == 200
    assert haproxy_of(third).is_running()
    for old in (first, second):
        assert wait_for(partial(has_ended, old))


def test_nobody_notices_that_a_supervisor_is_killed(node: Node) -> None:
    """Neither those who come nor those whose requests HAProxy holds."""
    supervisor = node.start()
    haproxy, deputy = haproxy_of(supervisor), deputy_of(supervisor)
    with ThreadPoolExecutor(1) as pool:
        for replica in node.replicas:
            replica.fall_silent()
        held = pool.submit(node.get)
        supervisor.kill()
        assert wait_for(lambda: "takes the place" in node.log())
        for replica in node.replicas:
            replica.speak()
        assert held.result()[0] == 200
    assert [node.get()[0] for _ in range(20)] == [200] * 20
    # Ray finds no HAProxy, and replaces the actor that manages it.
    assert not (node.folder / "admin.sock").exists()
    second = node.start(routes=False)
    assert node.get()[0] == 200
    assert haproxies(node.folder) == [haproxy]
    third = node.start("-sf", str(second.pid), "-x", str(node.folder / "admin.sock"))
    assert node.get()[0] == 200
    assert wait_for(partial(has_ended, deputy))
    assert wait_for(lambda: haproxies(node.folder) == [haproxy_of(third)])


def test_a_deputy_that_took_over_starts_haproxy_again_and_ends_it(node: Node) -> None:
    first = node.start()
    deputy = deputy_of(first)
    first.kill()
    assert wait_for(lambda: "takes the place" in node.log())
    haproxies(node.folder)[0].kill()
    assert wait_for(lambda: "is started again" in node.log())
    assert node.get()[0] == 200
    deputy.terminate()
    assert wait_for(partial(has_ended, deputy))
    assert haproxies(node.folder) == []


@pytest.mark.parametrize("extra", ["", DRAINING], ids=["no routes", "draining"])
def test_a_haproxy_that_is_not_needed_ends_with_its_supervisor(node: Node, extra: str) -> None:
    """Ray stops it by killing what it has started."""
    supervisor = node.launch(routes=bool(extra), extra=extra)
    assert wait_for(lambda: node.pid() == supervisor.pid)
    supervisor.kill()
    assert wait_for(lambda: haproxies(node.folder) == [] and not node.listens())


def test_what_is_left_if_all_supervisors_are_killed_at_once_is_replaced(node: Node) -> None:
    supervisor = node.start()
    left = haproxy_of(supervisor)
    for process in (deputy_of(supervisor), supervisor):
        process.kill()
    assert node.get()[0] == 200
    second = node.start()
    assert node.get()[0] == 200
    assert wait_for(partial(has_ended, left))
    assert haproxies(node.folder) == [haproxy_of(second)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both_and_leaves_no_file(node: Node, number: int) -> None:
    supervisor = node.start()
    haproxy = haproxy_of(supervisor)
    supervisor.send_signal(number)
    assert wait_for(partial(has_ended, supervisor))
    assert has_ended(haproxy)
    assert not [*node.folder.glob("haproxy-*"), *node.folder.glob("[0-9]*.sock")]


def test_a_configuration_that_haproxy_rejects_leaves_the_old_one_in_charge(node: Node) -> None:
    old = node.start()
    wrong = node.launch("-sf", str(old.pid), extra="nonsense\n")
    assert wait_for(partial(has_ended, wrong))
    assert node.pid() == old.pid
    assert node.get()[0] == 200


def test_a_port_in_use_is_said(node: Node) -> None:
    with socket.create_server(("127.0.0.1", node.ports[1])):
        supervisor = node.launch()
        assert wait_for(partial(has_ended, supervisor))
    assert "Address already in use" in node.log()


def test_another_configuration_is_not_run(tmp_path: Path) -> None:
    config = tmp_path / "other.cfg"
    config.write_text("defaults\n mode http\n")
    command = [sys.executable, "-m", "deployments.haproxy.supervisor", "-f", str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "HAProxy does not start: HAProxy's configuration has no admin socket" in done.stderr
    assert done.returncode == 1
