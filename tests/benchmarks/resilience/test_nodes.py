"""Two nodes: the clients of the one that goes, and the machines that the nodes run on."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from benchmarks.resilience import nodes, nodes_machines
from benchmarks.resilience.load import Load, Target
from benchmarks.resilience.nodes_machines import machines, why_not
from tests.support.waiting import LIMIT_S, wait_for

NO_LOAD = Load(rate_per_s=1e-3, idle_clients=0)


class Health(BaseHTTPRequestHandler):
    """Answers with the next of the server's statuses, and with 200 after the last one."""

    server: "HealthServer"

    def do_GET(self) -> None:
        assert self.path == "/-/healthz"
        self.server.asked += 1
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


class HealthServer(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Health)
        self.statuses: list[int] = []
        self.asked = 0


@pytest.fixture
def server() -> Iterator[HealthServer]:
    with HealthServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def target_at(port: int) -> Target:
    return Target("127.0.0.1", port, "m", 0.5, 99)


def test_a_node_is_healthy_if_its_haproxy_says_so(server: HealthServer) -> None:
    target = target_at(server.server_port)
    server.statuses = [200, 503]
    assert nodes.healthy(target)
    assert not nodes.healthy(target)


def test_a_node_without_haproxy_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert not nodes.healthy(target_at(port))


@pytest.mark.parametrize(
    ("statuses", "probes"), [([503, 503], 2), ([200, 503, 503], 3), ([503, 200, 503, 503], 4)]
)
def test_clients_leave_a_node_that_fails_two_probes_in_a_row(
    statuses: list[int], probes: int, server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.statuses = statuses.copy()
    monkeypatch.setattr(nodes, "_PROBE_EVERY_S", 0.001)
    monkeypatch.setattr(nodes, "_PROBE_TIMEOUT_S", LIMIT_S)
    first, other = target_at(server.server_port), target_at(1)
    clients = nodes.Balanced(first, other, NO_LOAD)
    clients.watch()
    assert server.asked == probes
    assert clients.target == other


def test_only_root_can_have_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="only root"), machines("a"):
        pass


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "nsenter" else name)
    with pytest.raises(SystemExit, match="nsenter: not installed"), machines("a"):
        pass


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_machine_that_dies_closes_its_connections_and_one_that_is_cut_off_does_not() -> None:
    with machines("one", "two") as (one, two):
        served = [connection_to(machine) for machine in (one, two)]
        assert two.address in one.run("getent hosts two")
        one.kill()
        two.unplug()
        dead, silent = served
        assert dead.recv(1) == b""
        silent.settimeout(0.2)
        with pytest.raises(TimeoutError):
            silent.recv(1)
        assert one.processes() == []
        assert two.processes() != []
        for connection in served:
            connection.close()
    assert not {one.link, two.link} & {name for _, name in socket.if_nameindex()}


def connection_to(machine: nodes_machines.Machine) -> socket.socket:
    """Return a connection to a program that a machine runs, and that says nothing."""
    program = "import socket as s; s.create_server((str(), 9000)).accept()[0].recv(1)"
    machine.run(f"python -c '{program}' &")
    made: list[socket.socket] = []

    def connects() -> list[socket.socket]:
        with contextlib.suppress(ConnectionRefusedError):
            made.append(socket.create_connection((machine.address, 9000), timeout=LIMIT_S))
        return made

    assert wait_for(connects)
    return made[0]


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_each_machine_has_folders_of_its_own_and_says_what_failed() -> None:
    with machines("one", "two") as (one, two):
        one.run("echo 1 >/tmp/ray/file; echo 1 >/dev/shm/file")
        assert two.run("ls /tmp/ray").split() == []
        assert "file" not in two.run("ls /dev/shm")
        with pytest.raises(SystemExit, match=r"two: .*no-such-program"):
            two.run("no-such-program")
