"""A local run: start Ray with Serve in HAProxy mode on this machine, and stop all of it again."""

import logging
import os
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from deployments.config import ServiceConfig
from deployments.errors import StartError
from deployments.routing import serve_environment, supervisor_environment

#: Memory that Ray, Serve and one replica of a small model use.
NEEDED_MEMORY_BYTES = 2 << 30
OBJECT_STORE_BYTES = 128 << 20
READY_TIMEOUT_S = 120.0
_POLL_S = 0.1


@dataclass(frozen=True)
class LocalService:
    """The addresses of a local run.

    Attributes
    ----------
    url : str
        URL of the service, with its route prefix.
    dashboard : str
        URL of Ray's dashboard; also the address for ``serve deploy -a``.
    metrics_url : str
        URL of the Prometheus metrics.
    """

    url: str
    dashboard: str
    metrics_url: str


@contextmanager
def local_service(
    config: ServiceConfig, report: Callable[[str], None], balance: str = "random"
) -> Iterator[LocalService]:
    """Serve `config` on this machine while the context lasts. Leave no process behind.

    Parameters
    ----------
    config : ServiceConfig
        The model to serve and the address to listen on.
    report : callable
        Called with one line of text at each step.
    balance : str
        How HAProxy chooses a replica: a key of `deployments.routing.BALANCES`.

    Yields
    ------
    LocalService
        The addresses of the running service.

    Raises
    ------
    StartError
        The port is in use, there is too little memory, or the model does not start.
    """
    _check_machine(config)
    # Not below $TMPDIR, to keep it short: the path of a Unix socket is limited to 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="sojourn-", dir="/tmp"))
    os.environ.update(_ray_environment(directory, balance))
    import ray  # only now: it reads its settings from the environment
    from ray import serve

    try:
        report("starting Ray")
        with _raise_as_start_error("Ray did not start"):
            context = ray.init(
                address="local",
                include_dashboard=True,
                object_store_memory=OBJECT_STORE_BYTES,
                logging_level="ERROR",
                log_to_driver=False,
                configure_logging=True,
            )
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        report(f"deploying {config.args.model.name}")
        with _raise_as_start_error("Serve did not start"):
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": config.http_host, "port": config.http_port},
            )
        dashboard = f"http://{context.address_info['webui_url']}"
        deploy(config.document, dashboard)
        url = f"http://{config.http_host}:{config.http_port}{config.route_prefix}"
        _wait_until_ready(config, url, dashboard)
        (node,) = ray.nodes()
        metrics_url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        yield LocalService(url, dashboard, metrics_url)
    finally:
        report("stopping")
        processes = _processes_of(directory)
        with suppress(Exception):
            serve.shutdown()
        with suppress(Exception):
            ray.shutdown()
        _stop({*processes, *_processes_of(directory)})
        shutil.rmtree(directory, ignore_errors=True)


def deploy(document: dict[str, Any], dashboard: str) -> None:
    """Deploy the content of a config file to a running cluster, as ``serve deploy`` does.

    Parameters
    ----------
    document : dict
        The parsed config file.
    dashboard : str
        URL of the cluster's dashboard.

    Raises
    ------
    StartError
        The cluster rejects the config or cannot be reached.
    """
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    with _raise_as_start_error("the cluster did not accept the config"):
        ServeSubmissionClient(dashboard).deploy_applications(document)


def _ray_environment(directory: Path, balance: str) -> dict[str, str]:
    """Return Ray's settings for this run, with free ports and private files for HAProxy."""
    return {
        **serve_environment(balance=balance),
        **supervisor_environment(),
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(_free_port(9101)),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(_free_port(8404)),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(_free_port(8500)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{directory}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{directory}/admin.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(directory),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{directory}/server-state",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{directory}/metrics.sock",
        # There is one HAProxy, and it learns of a stopping replica at once.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"),
        # Let replicas import a user's model from the working directory of this process.
        "PYTHONPATH": os.pathsep.join(
            filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")])
        ),
    }


def _check_machine(config: ServiceConfig) -> None:
    if sys.platform != "linux":
        raise StartError(f"Serve's HAProxy mode runs on Linux, not on {sys.platform}")
    owner = _port_owner(config.http_host, config.http_port)
    if owner is not None:
        raise StartError(
            f"port {config.http_port} of {config.http_host} is in use{owner}; free it or choose "
            "another one with --port"
        )
    available = psutil.virtual_memory().available
    if available < NEEDED_MEMORY_BYTES:
        raise StartError(
            f"only {available >> 20} MiB of memory are free; Ray and a replica need "
            f"{NEEDED_MEMORY_BYTES >> 20} MiB"
        )


def _port_owner(host: str, port: int) -> str | None:
    """Return None if `port` is free. Otherwise describe its owner, or return "" if unknown."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if isinstance(error, PermissionError):
                return " (no permission to listen there)"
        else:
            return None
    with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
        for connection in psutil.net_connections("tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port:
                if connection.pid is None:
                    break
                name = psutil.Process(connection.pid).name()
                return f" by {name} (process {connection.pid})"
    return ""


def _free_port(wanted: int) -> int:
    """Return `wanted` if that port is free, otherwise any free port."""
    for port in (wanted, 0):
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("", port))
                return int(probe.getsockname()[1])
    raise StartError("this machine has no free port")


def _wait_until_ready(config: ServiceConfig, url: str, dashboard: str) -> None:
    """Wait until the model answers through HAProxy. Raise `StartError` if it does not start."""
    ready = f"{url}/v2/models/{config.args.model.name}/ready"
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        with suppress(OSError), urllib.request.urlopen(ready, timeout=5) as answer:
            if answer.status == 200:
                return
        failure = _deployment_failure(config.application, dashboard)
        if failure:
            raise StartError(f"{config.args.model.name} did not start: {failure}")
        time.sleep(_POLL_S)
    raise StartError(f"{config.args.model.name} did not answer within {READY_TIMEOUT_S:g} s")


def _deployment_failure(application: str, dashboard: str) -> str | None:
    """Return why the application failed to deploy, or None if it has not failed."""
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    details = ServeSubmissionClient(dashboard).get_serve_details()
    status = details["applications"].get(application, {})
    if status.get("status") != "DEPLOY_FAILED":
        return None
    deployments = status.get("deployments", {}).values()
    return last_error([status.get("message", ""), *(entry["message"] for entry in deployments)])


def last_error(messages: list[str]) -> str:
    """Return the line that names the error in Ray's messages about a failed deployment.

    Parameters
    ----------
    messages : list of str
        The messages of the application and its deployments; they contain tracebacks.

    Returns
    -------
    str
        The message of the last exception; if there is none, the last line.
    """
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    for line in reversed(lines):
        name, colon, message = line.partition(": ")
        if colon and name.rpartition(".")[2].endswith(("Error", "Exception")):
            return message
    return lines[-1] if lines else "Ray gave no reason"


@contextmanager
def _raise_as_start_error(what: str) -> Iterator[None]:
    """Raise any error as a `StartError` of one line that begins with `what`."""
    try:
        yield
    except StartError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise StartError(f"{what}: {lines[-1].strip()}") from error


def _processes_of(directory: Path) -> set[psutil.Process]:
    """Return this process's descendants and every process with `directory` in its command line."""
    # HAProxy outlives the actor that started it, and is then no longer a descendant.
    found = set(psutil.Process().children(recursive=True))
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(directory) in word for word in process.cmdline()):
                found.add(process)
    found.discard(psutil.Process())
    return found


def _stop(processes: set[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=3)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=3)
