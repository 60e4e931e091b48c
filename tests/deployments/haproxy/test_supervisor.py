"""A real HAProxy under its supervisor, with the arguments and configuration that Ray gives it."""

import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from deployments.haproxy.command import HELD_MS
from deployments.haproxy.ray_config import UNAVAILABLE
from deployments.haproxy.replica_sockets import open_socket
from tests.support.haproxy.node import Node, haproxy_of, new_node
from tests.support.haproxy.servers import Server
from tests.support.readme import ROOT
from tests.support.waiting import has_ended, wait_for

pytestmark = pytest.mark.slow

REFUSAL = (503, UNAVAILABLE.partition(b"\r\n\r\n")[2])


@pytest.fixture
def node(tmp_path):
    with new_node(tmp_path) as node:
        node.replicas = [Server(), Server()]
        yield node


def answer_of(server: Server):
    return 200, b"%d" % server.port


def test_replicas_of_the_node_are_reached_over_unix_sockets(node: Node):
    """One that listens on none is reached over TCP."""

    class OverUnix(Server):
        def answer(self, path, fields):
            return 200, b"over Unix", {}

    with closing(OverUnix(open_socket(node.replicas[0].port))):
        node.start()
        expected = {(200, b"over Unix"), answer_of(node.replicas[1])}
        assert wait_for(lambda: {node.get() for _ in range(20)} == expected)


def test_a_haproxy_that_dies_is_back_before_a_client_notices(node: Node):
    supervisor = node.start()
    first = haproxy_of(supervisor)
    assert stat.S_IMODE((node.folder / "admin.sock").stat().st_mode) == 0o600
    first.suspend()
    assert node.pid() is None
    first.kill()
    # Nobody is refused: the socket's queue holds those who connect meanwhile.
    assert [node.get()[0] for _ in range(20)] == [200] * 20
    assert haproxy_of(supervisor).pid != first.pid
    assert node.pid() == supervisor.pid
    assert "ended with status -9 and is started again" in node.log()


def test_a_reload_loses_no_client_and_the_old_one_ends(node: Node):
    old = node.start()
    stop = threading.Event()
    statuses: list[int] = []

    def ask_again_and_again():
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


def test_the_requests_of_a_replica_that_stops_answering_are_sent_on(node: Node):
    node.start()
    silent, other = node.replicas
    assert wait_for(lambda: [one.failures for one in node.servers()] == [0, 0])
    silent.fall_silent()
    assert [node.get() for _ in range(10)] == [answer_of(other)] * 10


@pytest.mark.parametrize("limited", [True, False])
def test_serves_proxy_may_hold_requests_for_long_only_if_there_may_be_no_replicas(
    node: Node, limited
):
    proxy = node.proxy = Server()
    node.environment = {HELD_MS: f"http-{'app' if limited else 'other'}=500"}
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
    if limited:
        assert node.get() == REFUSAL
        proxy.speak()
    else:
        threading.Timer(0.75, proxy.speak).start()
    assert node.get() == answer_of(proxy)
    node.replicas.append(Server())
    node.reload(second)
    assert node.get() == answer_of(node.replicas[0])


def test_a_kept_connection_gets_an_answer_when_two_replicas_die_at_its_request(node: Node):
    """Three refusals by each of the dead ones would use up all retries; a hold has its limit."""
    node.environment = {HELD_MS: "http-app=500"}
    node.proxy = Server()
    node.proxy.fall_silent()
    node.start()
    with closing(node.connect()) as client:

        def ask_again():
            client.request("GET", "/x")
            answer = client.getresponse()
            answer.read()
            return answer.status

        assert [ask_again() for _ in range(4)] == [200] * 4
        for replica in node.replicas:
            replica.die_at_next_request()
        assert ask_again() == 503


def test_what_a_dying_replica_leaves_and_is_too_large_to_be_sent_again_is_refused(node: Node):
    node.start()
    for replica in node.replicas:
        replica.die_at_next_request()
    assert node.get(body=b" " * (4 << 16)) == REFUSAL  # HAProxy's buffer has 64 KiB


def test_until_there_are_routes_the_predecessor_serves_on(node: Node):
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


def test_haproxy_goes_on_when_its_supervisor_is_killed_until_ray_has_replaced_it(node: Node):
    supervisor = node.start()
    haproxy = haproxy_of(supervisor)
    with ThreadPoolExecutor(1) as pool:
        for replica in node.replicas:
            replica.fall_silent()
        held = pool.submit(node.get)
        assert wait_for(lambda: sum(one.sessions for one in node.servers()) == 1)
        supervisor.kill()
        assert wait_for(partial(has_ended, supervisor))
        assert node.pid() is None  # so Ray replaces the actor that manages it
        second = node.start(routes=False)
        for replica in node.replicas:
            replica.speak()
        assert held.result()[0] == 200
    assert [node.get()[0] for _ in range(20)] == [200] * 20
    assert node.haproxies() == [haproxy]
    third = node.reload(second)
    assert node.get()[0] == 200
    for old in (second, haproxy):
        assert wait_for(partial(has_ended, old))
    assert node.haproxies() == [haproxy_of(third)]


def test_a_haproxy_without_a_supervisor_is_replaced_if_it_dies_and_ends_if_nobody_comes(node: Node):
    node.start().kill()
    second = node.start(routes=False)
    node.haproxies()[0].kill()
    haproxy_of(second)
    third = node.reload(second)
    (watch,) = (one for one in third.children() if one.name() == "sh")
    third.kill()
    assert node.get()[0] == 200
    assert wait_for(watch.children)  # it waits for a minute
    watch.children()[0].kill()
    assert wait_for(lambda: node.haproxies() == [] and not node.listens())


def test_a_haproxy_without_routes_ends_with_its_supervisor(node: Node):
    """Ray stops it by killing what it has started."""
    node.start(routes=False).kill()
    assert wait_for(lambda: node.haproxies() == [] and not node.listens())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both_and_leaves_no_file(node: Node, number):
    supervisor = node.start()
    haproxy = haproxy_of(supervisor)
    supervisor.send_signal(number)
    assert wait_for(partial(has_ended, supervisor))
    assert has_ended(haproxy)
    assert not [*node.folder.glob("haproxy-*"), *node.folder.glob("[0-9]*.sock")]


def test_a_configuration_that_haproxy_rejects_leaves_the_old_one_in_charge(node: Node):
    old = node.start()
    wrong = node.launch("-sf", str(old.pid), extra="nonsense\n")
    assert wait_for(partial(has_ended, wrong))
    assert node.pid() == old.pid
    assert node.get()[0] == 200


def test_haproxy_starts_with_the_files_that_it_may_open(node: Node):
    """It refuses to if it could not open a file for each connection."""
    node.open_files = 2000
    node.start()
    assert node.get()[0] == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-f", "other.cfg"], "HAProxy's configuration has no frontend for HTTP"),
        (["-f", "other.cfg", "--new"], "unknown arguments"),
        (["-db"], "unknown arguments"),
    ],
)
def test_another_command_or_configuration_is_not_run(tmp_path, arguments, message):
    (tmp_path / "other.cfg").write_text("global\n stats socket admin.sock mode 666 level admin\n")
    command = [sys.executable, "-m", "deployments.haproxy.supervisor", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "SOJOURN_HAPROXY": "/none"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert f"HAProxy does not start: {message}" in done.stderr
    assert done.returncode == 1
