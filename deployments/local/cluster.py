"""The child process of a local run: it starts Ray and Serve, and deploys the application.

It reads what to serve as one line of JSON from standard input, and writes lines of JSON to standard
output: ``{"step": text}`` as it goes, and then the addresses or ``{"error": message}``; later, a
step for each deployment that fails. At the end of its input it stops Serve and Ray, or, before the
service is ready, kills what it has started.
"""

import json
import logging
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import psutil
import ray
from ray import serve
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from deployments.errors import StartError
from deployments.local.descendants import adopted_orphans, descendants, end_descendants
from deployments.local.machine import LOOPBACK
from deployments.local.serve_api import ServeApi
from policy.errors import SojournError

OBJECT_STORE_BYTES = 128 << 20
READY_TIMEOUT_S = 120.0
#: Replicas finish what they have accepted; see `deployments.serving.replica.DRAIN_TIMEOUT_S`.
SHUTDOWN_TIMEOUT_S = 35.0
_POLL_S = 0.1
#: How often the controller is asked whether a start has failed. Each answer takes CPU, which the
#: start needs.
_FAILURE_POLL_S = 1.0
#: How often a service that runs is asked whether a later deployment has failed.
_WATCH_EVERY_S = 5.0


def main() -> int:
    """Serve the applications that standard input names, until it ends."""
    # What Ray prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    ended = _InputEnd()
    with adopted_orphans():
        ended.while_starting = True
        ended.start()
        try:
            addresses = start(request, answers)
        except SojournError as error:
            _write(answers, error=str(error))
            return 1
        finally:
            ended.while_starting = False
        _write(answers, **addresses)
        _report_failures(ServeApi(addresses["dashboard"]), ended, answers)
        shut_down()
    return 0


class _InputEnd(threading.Thread):
    """Wait for the end of standard input; `while_starting`, end the process at once then."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.while_starting = False

    def run(self) -> None:
        while sys.stdin.read(1):
            pass
        if self.while_starting:
            end_descendants()
            os._exit(1)


def _write(answers: TextIO, **content: object) -> None:
    with suppress(BrokenPipeError):
        answers.write(json.dumps(content) + "\n")
        answers.flush()


def start(request: dict[str, Any], answers: TextIO) -> dict[str, str]:
    """Start Ray and Serve, deploy, and wait for the first answer; return URLs of Ray's.

    Raises
    ------
    StartError
        One of them does not start.
    """
    _write(answers, step="starting Ray")
    with _raise_as_start_error("Ray did not start"):
        context = ray.init(
            address="local",
            include_dashboard=True,
            object_store_memory=OBJECT_STORE_BYTES,
            logging_level="ERROR",
            log_to_driver=True,
            configure_logging=True,
        )
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    names = ", ".join(application["model"] for application in request["applications"])
    _write(answers, step=f"deploying {names}")
    with _raise_as_start_error("Serve did not start"):
        serve.start(
            proxy_location="HeadOnly", http_options={"host": LOOPBACK, "port": request["port"]}
        )
    dashboard = f"http://{context.address_info['webui_url']}"
    api = ServeApi(dashboard)
    api.deploy(request["document"])
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    where = f"http://{request['address']}:{request['port']}"
    for application in request["applications"]:
        _wait_until_ready(application, where, api, deadline_s)
    (node,) = ray.nodes()
    metrics_url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    return {"dashboard": dashboard, "metrics_url": metrics_url}


def shut_down() -> None:
    """Stop Serve, whose replicas finish what they have, then Ray, then whatever is left."""
    if _gcs_runs():  # without it, every call waits for it
        with suppress(Exception):
            _shut_serve_down()
        with suppress(Exception):
            ray.shutdown()
    end_descendants()


def _gcs_runs() -> bool:
    for process in descendants():
        with suppress(psutil.Error):
            if process.name() == "gcs_server":
                return process.status() != psutil.STATUS_ZOMBIE
    return False


def _shut_serve_down() -> None:
    """Do what `serve.shutdown` does, but leave no call behind that Ray complains about.

    `serve.shutdown` waits in a call to the controller for the controller to be killed. Ray then
    reports that the call failed and will be repeated.
    """
    controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    ray.get(controller.graceful_shutdown.remote(wait=False), timeout=SHUTDOWN_TIMEOUT_S)
    deadline_s = time.monotonic() + SHUTDOWN_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        except ValueError:
            return
        time.sleep(_POLL_S)


def _wait_until_ready(
    application: dict[str, str], where: str, api: ServeApi, deadline_s: float
) -> None:
    """Wait until a model answers through HAProxy. Raise `StartError` if it does not start."""
    model = application["model"]
    ready = f"{where}{application['route_prefix']}/v2/health/ready"  # this needs no token
    ask_at_s = 0.0
    while (now_s := time.monotonic()) < deadline_s:
        with suppress(OSError), urllib.request.urlopen(ready, timeout=5) as answer:
            if answer.status == 200:
                return
        if now_s >= ask_at_s:
            failure = api.failures().get(application["application"])
            if failure:
                raise StartError(f"{model} did not start: {failure}")
            ask_at_s = now_s + _FAILURE_POLL_S
        time.sleep(_POLL_S)
    raise StartError(f"{model} did not answer within {READY_TIMEOUT_S:g} s")


def _report_failures(api: ServeApi, ended: _InputEnd, answers: TextIO) -> None:
    """Report each deployment that fails, until standard input ends: `serve deploy` does not."""
    reported: dict[str, str] = {}
    while ended.is_alive():
        failures = reported
        with suppress(Exception):  # Ray's dashboard may be busy, or gone
            failures = api.failures()
        for name, failure in failures.items():
            if reported.get(name) != failure:
                _write(answers, step=f"the deployment of {name} failed: {failure}")
        reported = failures
        ended.join(_WATCH_EVERY_S)


@contextmanager
def _raise_as_start_error(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise StartError(f"{what}: {lines[-1].strip()}") from error


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Ray's own threads may hold the interpreter up.
    os._exit(status)
