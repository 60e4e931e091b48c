"""The environment of a local run's Ray: its settings, free ports, and nothing open to others.

Ray, its agents, Serve and the replicas listen on the node's address, which Ray is made to take for
127.0.0.1. Serve is told the same for HAProxy, whose supervisor has the service, and only that,
listen where it was asked to (`deployments.haproxy.ray_config.parse`).
"""

import os
from pathlib import Path

from deployments.errors import StartError
from deployments.haproxy.command import HAPROXY, HTTP_HOST, RAYS_HAPROXY
from deployments.haproxy.open_files import open_files_limit
from deployments.haproxy.routing import (
    SUPERVISOR,
    serve_environment,
    supervisor_environment,
)
from deployments.local.machine import free_port
from deployments.local.ray_token import ray_access
from deployments.local.run import LocalRun


def environment_of(run: LocalRun, directory: Path, balance: str) -> dict[str, str]:
    """Return the environment of a local run's processes.

    Parameters
    ----------
    run : LocalRun
        What is served, and where.
    directory : Path
        An empty folder of the run's own.
    balance : str
        How HAProxy chooses a replica: a key of `deployments.haproxy.routing.BALANCES`.

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
        **serve_environment(balance, open_files_limit()),
        **supervisor,
        **({HAPROXY: own} if own and Path(own).name != SUPERVISOR else {}),
        HTTP_HOST: run.http_host,
        **run.environment,
        **ray_access(),
        # Ray then takes 127.0.0.1 for the node's address, and its processes listen there only.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port(9101)),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port(8404)),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port(8500)),
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
