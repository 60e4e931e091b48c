"""The environment of a local run's Ray: its settings, free ports, and nothing open to others.

Ray, its agents, Serve and the replicas listen on the node's address, which Ray is made to take for
127.0.0.1. Only the service itself listens where it was asked to, by HAProxy's supervisor
(`deployments.haproxy.ray_config.parse`). Ray answers those alone that have its token.
"""

import os
import secrets
import stat
from pathlib import Path

from deployments.errors import StartError
from deployments.haproxy.command import HAPROXY, HTTP_HOST, RAYS_HAPROXY
from deployments.haproxy.routing import (
    SUPERVISOR,
    serve_environment,
    supervisor_environment,
)
from deployments.local.machine import ReservedPorts
from deployments.local.run import LocalRun


def environment_of(run: LocalRun, directory: Path, ports: ReservedPorts) -> dict[str, str]:
    """Return the environment of a local run's processes; `ports` are held as long as the run.

    Raises
    ------
    StartError
        No port is free, Ray's token cannot be written, or `SUPERVISOR` is not installed.
    """
    supervisor = supervisor_environment()
    if not supervisor:
        raise StartError(f"{SUPERVISOR} is not installed beside this Python; install Sojourn again")
    own = os.environ.get(RAYS_HAPROXY, "")
    return {
        **os.environ,
        **serve_environment(),
        **supervisor,
        **({HAPROXY: own} if own and Path(own).name != SUPERVISOR else {}),
        HTTP_HOST: run.http_host,
        **run.environment,
        **ray_access(),
        # Ray then takes 127.0.0.1 for the node's address, and its processes listen there only.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports.free(9101)),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports.free(8404)),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.free(8500)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{directory}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{directory}/admin.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(directory),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{directory}/server-state",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{directory}/metrics.sock",
        # Replicas serve on without the GCS, Ray's directory of the cluster; for 60 s otherwise.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
        # There is one HAProxy, and it learns of a stopping replica at once.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        # What a model prints, and the errors of a replica, are shown by the command.
        "RAY_SERVE_LOG_TO_STDERR": "1",
        "RAY_COLOR_PREFIX": "0",
        "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"),
        # Let replicas import a user's model from the working directory of this process.
        "PYTHONPATH": os.pathsep.join(
            filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")])
        ),
    }


def ray_access() -> dict[str, str]:
    """Return the environment with which this user's processes may talk to a local run's Ray.

    Ray asks for a token, which it finds where it always does; one is made if there is none. Other
    users of the machine may not read it.

    Raises
    ------
    StartError
        The token cannot be written.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if mode == "token" and "RAY_AUTH_TOKEN" not in os.environ:
        try:
            _make_token(path)
        except OSError as error:
            raise StartError(
                f"Ray's token: {path}: {error.strerror}; set RAY_AUTH_TOKEN_PATH to another file"
            ) from error
    return {"RAY_AUTH_MODE": mode}


def _make_token(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if path.stat().st_uid == os.getuid() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)  # Ray lets everybody read the one that it makes
        return
    with open(descriptor, "w") as file:
        file.write(secrets.token_hex(32))


def ray_headers() -> dict[str, str]:
    """Return the HTTP headers with which Ray's dashboard answers this user."""
    access = ray_access()
    if access["RAY_AUTH_MODE"] != "token":
        return {}
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    token = os.environ.get("RAY_AUTH_TOKEN") or Path(path).read_text().strip()
    return {"Authorization": f"Bearer {token}"}
