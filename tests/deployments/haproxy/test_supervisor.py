"""A real HAProxy under its supervisor, with the arguments and configuration that Ray gives it."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from deployments.haproxy.command import HELD_MS
from deployments.haproxy.ray_config import UNAVAILABLE
from tests.support.haproxy.node import Node, deputy_of, haproxy_of, new_node
from tests.support.haproxy.servers import Server
from tests.support.haproxy.unix_replica import ANSWER, unix_replica
from tests.support.readme import ROOT
from tests.support.waiting import has_ended, wait_for

pytestmark = pytest.mark.slow

#: For how long a request is held where that is limited: longer than a busy machine takes to answer.
HELD_S = 1.0
#: As Ray writes it, but in a section of its own.
DRAINING = (
    "backend unused\n acl healthcheck path -i /-/healthz\n http-request return status 503 "
    'content-type text/plain string "This node is being drained." if healthcheck\n'
)
REFUSAL = (503, UNAVAILABLE.partition(b"\r\n\r\n")[2])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with new_node(tmp_path) as node:
        node.replicas = [Server(), Server()]
        yield node


def answer_of(server: Server) -> tuple[int, bytes]:
    return 200, b"%d" % server.port


def test_replicas_of_the_node_are_reached_over_unix_sockets(node: Node) -> None:
    """One that listens on none is reached over TCP."""
    with unix_replica(node.replicas[0].port):
        node.start()
        expected = {(200, ANSWER), answer_of(node.replicas[1])}
        assert wait_for(lambda: {node.get() for _ in range(20)} == expected)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_haproxy_that_dies_or_hangs_is_back_before_a_client_notices(
    node: Node, hangs: bool
) -> None:
    supervisor = node.start()
    first = haproxy_of(supervisor)
    (first.suspend if hangs else first.kill)()
    # Nobody is refused: the socket's queue holds those who connect meanwhile.
    assert [node.get()[0] for _ in range(20)] == [200] * 20
    assert haproxy_of(supervisor).pid != first.pid
    assert node.pid() == supervisor.pid
    assert "ended with status -9 and is started again" in node.log()


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
        new = node.reload(old)
        assert wait_for(partial(has_ended, old))
    finally:
        stop.set()
        client.join()
    assert set(statuses) == {200}
    assert node.haproxies() == [haproxy_of(new)]


def test_the_requests_of_a_replica_that_stops_answering_are_sent_on(node: Node) -> None:
    node.start()
    silent, other = node.replicas
    assert wait_for(lambda: [one.failures for one in node.servers()] == [0, 0])
    silent.fall_silent()
    assert [node.get() for _ in range(10)] == [answer_of(other)] * 10


@pytest.mark.parametrize("always_served", [True, False])
def test_serves_proxy_may_hold_requests_only_if_there_may_be_no_replicas(
    node: Node, always_served: bool
) -> None:
    proxy = node.proxy = Server()
    node.environment = {HELD_MS: f"http-{'app' if always_served else 'other'}={1e3 * HELD_S:.0f}"}
    first = node.start()
    assert node.get() in map(answer_of, node.replicas)
    for replica in node.replicas:
        replica.close()
    # It may know of a replica that HAProxy does not know yet.
    assert wait_for(lambda: node.get() == answer_of(proxy))
    # A new configuration, and with it a new HAProxy, changes nothing.
    node.replicas.clear()
    second = node.reload(first)
    assert node.get() == answer_of(proxy)
    proxy.fall_silent()
    if always_served:
        assert node.get() == REFUSAL
        proxy.speak()
    else:
        threading.Timer(1.5 * HELD_S, proxy.speak).start()
    assert node.get() == answer_of(proxy)
    node.replicas.append(Server())
    node.reload(second)
    assert node.get() == answer_of(node.replicas[0])


def test_a_kept_connection_gets_an_answer_when_two_replicas_die_at_its_request(node: Node) -> None:
    """Three refusals by each of the dead ones would use up all retries."""
    node.environment = {HELD_MS: f"http-app={1e3 * HELD_S:.0f}"}
    node.start()
    with closing(node.connect()) as client:

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
    assert node.get(body=b" " * (4 << 16)) == REFUSAL  # HAProxy's buffer has 64 KiB


def test_until_there_are_routes_the_predecessor_serves_on(node: Node) -> None:
    first = node.start()
    # Ray's actor has died, and its successor knows no application yet.
    second = node.start(routes=False)
    assert second.children() == []
    assert node.get()[0] == 200
    third = node.reload(second)
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
    assert node.haproxies() == [haproxy]
    third = node.reload(second)
    assert node.get()[0] == 200
    assert wait_for(partial(has_ended, deputy))
    assert wait_for(lambda: node.haproxies() == [haproxy_of(third)])


def test_a_deputy_that_took_over_starts_haproxy_again_and_ends_it(node: Node) -> None:
    first = node.start()
    deputy = deputy_of(first)
    first.kill()
    assert wait_for(lambda: "takes the place" in node.log())
    node.haproxies()[0].kill()
    assert wait_for(lambda: "is started again" in node.log())
    assert node.get()[0] == 200
    deputy.terminate()
    assert wait_for(partial(has_ended, deputy))
    assert node.haproxies() == []


@pytest.mark.parametrize("extra", ["", DRAINING], ids=["no routes", "draining"])
def test_a_haproxy_that_is_not_needed_ends_with_its_supervisor(node: Node, extra: str) -> None:
    """Ray stops it by killing what it has started."""
    node.start(routes=bool(extra), extra=extra).kill()
    assert wait_for(lambda: node.haproxies() == [] and not node.listens())


def test_what_is_left_if_all_supervisors_are_killed_at_once_is_replaced(node: Node) -> None:
    supervisor = node.start()
    left = haproxy_of(supervisor)
    for process in (deputy_of(supervisor), supervisor):
        process.kill()
    assert node.get()[0] == 200
    second = node.start()
    assert node.get()[0] == 200
    assert wait_for(partial(has_ended, left))
    assert node.haproxies() == [haproxy_of(second)]


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


def test_haproxy_starts_with_the_files_that_it_may_open(node: Node) -> None:
    """It refuses to if it could not open a file for each connection."""
    node.open_files = 2000
    node.start()
    (config,) = node.folder.glob("haproxy-*.cfg")
    assert "maxconn 697\n" in config.read_text()
    assert node.get()[0] == 200


def test_a_port_in_use_is_said(node: Node) -> None:
    with socket.create_server(("127.0.0.1", node.ports[1])):
        supervisor = node.launch()
        assert wait_for(partial(has_ended, supervisor))
    assert "Address already in use" in node.log()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-f", "other.cfg"], "HAProxy's configuration has no admin socket"),
        (["-f", "other.cfg", "--new"], "unknown arguments"),
        (["-db"], "unknown arguments"),
    ],
)
def test_another_command_or_configuration_is_not_run(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "other.cfg").write_text("defaults\n mode http\n")
    command = [sys.executable, "-m", "deployments.haproxy.supervisor", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "SOJOURN_HAPROXY": "/none"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert f"HAProxy does not start: {message}" in done.stderr
    assert done.returncode == 1
