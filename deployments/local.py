"""A local run: one machine's Ray with Serve in HAProxy mode, brought up and taken down whole."""

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
from deployments.routing import serve_environment

#: What Ray, Serve and one replica of a small model take.
NEEDED_MEMORY_BYTES = 2 << 30
OBJECT_STORE_BYTES = 128 << 20
READY_TIMEOUT_S = 120.0
_POLL_S = 0.1


@dataclass(frozen=True)
class LocalService:
    """Where a local run answers.

    Attributes
    ----------
    url : str
        The service.
    dashboard : str
        Ray's dashboard, and the address for `serve deploy -a`.
    metrics_url : str
        What Prometheus scrapes.
    """

    url: str
    dashboard: str
    metrics_url: str


@contextmanager
def local_service(
    config: ServiceConfig, say: Callable[[str], None], balance: str = "random"
) -> Iterator[LocalService]:
    """Serve `config` on this machine while the context lasts, and leave no process behind.

    Parameters
    ----------
    config : ServiceConfig
        What to serve, and where to listen.
    say : callable
        Told in a line what is going on.
    balance : str
        How HAProxy chooses a replica: a key of `deployments.routing.BALANCES`.

    Yields
    ------
    LocalService
        Where it answers.

    Raises
    ------
    StartError
        The port is taken, memory is short, or the model does not come up; one line.
    """
    _check_machine(config)
    # Short, and so not below $TMPDIR: a Unix socket's path may have about 100 characters.
    directory = Path(tempfile.mkdtemp(prefix="sojourn-", dir="/tmp"))
    os.environ.update(_environment(directory, balance))
    import ray  # after its settings are in the environment
    from ray import serve

    try:
        say("starting Ray")
        with _as_start_error("Ray did not start"):
            context = ray.init(
                address="local",
                include_dashboard=True,
                object_store_memory=OBJECT_STORE_BYTES,
                logging_level="ERROR",
                log_to_driver=False,
                configure_logging=True,
            )
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        say(f"deploying {config.args.model.name}")
        with _as_start_error("Serve did not start"):
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
        say("stopping")
        processes = _processes_of(directory)
        with suppress(Exception):
            serve.shutdown()
        with suppress(Exception):
            ray.shutdown()
        _end({*processes, *_processes_of(directory)})
        shutil.rmtree(directory, ignore_errors=True)


def deploy(document: dict[str, Any], dashboard: str) -> None:
    """Hand the content of a config file to a running cluster, as `serve deploy` does."""
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    with _as_start_error("the cluster did not take the config"):
        ServeSubmissionClient(dashboard).deploy_applications(document)


def _environment(directory: Path, balance: str) -> dict[str, str]:
    """Ray's settings for this run: ours, free ports for HAProxy's own pages, private files."""
    return {
        **serve_environment(balance=balance),
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(_free_port(9101)),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(_free_port(8404)),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(_free_port(8500)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{directory}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{directory}/admin.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(directory),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{directory}/server-state",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{directory}/metrics.sock",
        # The one HAProxy hears of a stopping replica at once.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"),
        # Replicas import a user's model from where the command was run.
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
            f"port {config.http_port} of {config.http_host} is taken{owner}: stop that, or choose "
            "another with --port"
        )
    available = psutil.virtual_memory().available
    if available < NEEDED_MEMORY_BYTES:
        raise StartError(
            f"{available >> 20} MB of memory are free: Ray and a replica need "
            f"{NEEDED_MEMORY_BYTES >> 20} MB"
        )


def _port_owner(host: str, port: int) -> str | None:
    """None where `port` is free; else who has it, as far as can be seen."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if isinstance(error, PermissionError):
                return " (this user may not listen there)"
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
    """Give `wanted` where it is free, else any free port."""
    for port in (wanted, 0):
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("", port))
                return int(probe.getsockname()[1])
    raise StartError("no free port on this machine")


def _wait_until_ready(config: ServiceConfig, url: str, dashboard: str) -> None:
    """Wait until the model answers through HAProxy, or say why it never will."""
    ready = f"{url}/v2/models/{config.args.model.name}/ready"
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        with suppress(OSError), urllib.request.urlopen(ready, timeout=5) as answer:
            if answer.status == 200:
                return
        failure = _failure(config.application, dashboard)
        if failure:
            raise StartError(f"{config.args.model.name} did not start: {failure}")
        time.sleep(_POLL_S)
    raise StartError(f"{config.args.model.name} did not answer within {READY_TIMEOUT_S:g} s")


def _failure(application: str, dashboard: str) -> str | None:
    """Why the application failed to deploy; None while it has not failed."""
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    details = ServeSubmissionClient(dashboard).get_serve_details()
    status = details["applications"].get(application, {})
    if status.get("status") != "DEPLOY_FAILED":
        return None
    deployments = status.get("deployments", {}).values()
    return last_error([status.get("message", ""), *(entry["message"] for entry in deployments)])


def last_error(messages: list[str]) -> str:
    """Find the one line that says what went wrong in what Ray says of a failed deployment."""
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    for line in reversed(lines):
        name, colon, message = line.partition(": ")
        if colon and name.rpartition(".")[2].endswith(("Error", "Exception")):
            return message
    return lines[-1] if lines else "Ray gives no reason"


@contextmanager
def _as_start_error(what: str) -> Iterator[None]:
    try:
        yield
    except StartError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise StartError(f"{what}: {lines[-1].strip()}") from error


def _processes_of(directory: Path) -> set[psutil.Process]:
    """All that this process started, and every HAProxy that runs on a file of `directory`."""
    # A HAProxy outlives the actor that started it, and is then nobody's child.
    found = set(psutil.Process().children(recursive=True))
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(directory) in word for word in process.cmdline()):
                found.add(process)
    found.discard(psutil.Process())
    return found


def _end(processes: set[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=3)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=3)
