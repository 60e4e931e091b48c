"""HAProxy without Ray, in front of given servers, with the settings it has under Ray Serve."""

import socket as socketlib
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deployments.errors import StartError
from deployments.haproxy import replica_sockets
from deployments.haproxy.command import find_haproxy
from deployments.haproxy.refusals import rules
from deployments.haproxy.request_environment import MIN_BUFFER_BYTES
from deployments.haproxy.routing import MAX_CLIENTS, serve_environment
from tests.support.waiting import LIMIT_S

_START_S, _LOOK_EVERY_S = 10.0, 0.01
_CONFIG = """
global
    stats socket {socket} mode 666 level admin
    maxconn {max_clients}
    no strict-limits
    nbthread {settings[NBTHREAD]}
    tune.bufsize {buffer_bytes}
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option abortonclose
    option splice-request
    option splice-response
    option redispatch 1
    retry-on {settings[RETRY_ON]}
    retries {settings[RETRIES]}
    option http-no-delay
    option idle-close-on-response
    balance {settings[BALANCE_ALGORITHM]}
frontend front
    bind 127.0.0.1:{port}
    use_backend back
backend back
    http-reuse always
    {rules}
    {servers}
"""


def _wait_until_open(process: "subprocess.Popen[bytes]", port: int) -> None:
    until_s = time.monotonic() + _START_S
    while True:
        with socketlib.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > until_s:
            raise StartError(f"HAProxy does not listen on port {port}")
        time.sleep(_LOOK_EVERY_S)


def _address(port: int, over_unix: bool) -> str:
    if over_unix and replica_sockets.is_served(port):
        return replica_sockets.haproxy_address(port)
    return f"127.0.0.1:{port}"


@contextmanager
def haproxy(
    port: int, servers: Mapping[str, int], socket: Path, *, over_unix: bool = True
) -> Iterator[int]:
    """Run HAProxy on a port while the context lasts; yield its process id once it listens.

    `servers` are their ports on this machine, by HAProxy's names of them. Those that already listen
    on their Unix sockets are reached over these, as under Ray, unless `over_unix` is false. The
    config is written beside the admin `socket`.
    """
    prefix = "RAY_SERVE_HAPROXY_"
    settings = {name.removeprefix(prefix): value for name, value in serve_environment().items()}
    config = socket.with_suffix(".cfg")
    config.write_text(
        _CONFIG.format(
            buffer_bytes=MIN_BUFFER_BYTES,
            max_clients=MAX_CLIENTS,
            socket=socket,
            settings=settings,
            port=port,
            servers="\n    ".join(
                f"server {server} {_address(server_port, over_unix)}"
                for server, server_port in servers.items()
            ),
            rules="\n    ".join(rules("back", tuple(servers))),
        )
    )
    process = subprocess.Popen([find_haproxy(), "-f", config])
    try:
        _wait_until_open(process, port)
        yield process.pid
    finally:
        process.terminate()
        process.wait(LIMIT_S)
