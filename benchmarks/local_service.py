"""A service that `sojourn serve` runs on this machine, its replicas, and load for it."""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import yaml

from benchmarks.inputs import EMULATED_P4_CONFIG, ROOT
from deployments.local.serve_api import ServeApi

_SOJOURN = (sys.executable, "-m", "sojourn.cli")


@dataclass(frozen=True)
class LocalService:
    """A service that runs; all its processes descend from `process`, `sojourn serve`."""

    url: str
    dashboard: str
    process: psutil.Process


@contextmanager
def running_service(document: Mapping[str, Any], port: int) -> Iterator[LocalService]:
    """Run `sojourn serve` with a config while the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(yaml.safe_dump(document))
        command = [*_SOJOURN, "serve", str(config), "--port", str(port), "--json"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            summary = first_object(process.stdout)
            yield LocalService(summary["url"], summary["dashboard"], psutil.Process(process.pid))
        finally:
            process.terminate()  # a script that runs in the background ignores SIGINT
            process.wait(60)


def first_object(output: IO[str]) -> dict[str, Any]:
    """Return the JSON object that a command prints once it is ready."""
    lines: list[str] = []
    for line in output:
        lines.append(line)
        if line.rstrip() == "}":
            content: dict[str, Any] = json.loads("".join(lines))
            return content
    raise SystemExit("the service did not start")


def emulated_p4_document() -> dict[str, Any]:
    """Return the config of an emulated Tesla P4, made 20 times slower."""
    document: dict[str, Any] = yaml.safe_load(EMULATED_P4_CONFIG.read_text())
    return document


def service_document(
    model: Mapping[str, Any], user_config: Mapping[str, Any], port: int, replicas: int = 1
) -> dict[str, Any]:
    replica = {
        "name": "Replica",
        "num_replicas": replicas,
        "ray_actor_options": {"num_cpus": 1},
        "user_config": user_config,
    }
    application = {
        "name": model["name"],
        "route_prefix": "/",
        "import_path": "deployments.application:build",
        "args": {"model": model},
        "deployments": [replica],
    }
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [application],
    }


def load_test(url: str, *options: str, check: bool = True) -> dict[str, Any]:
    """Run `sojourn loadtest` and return its report; `check` makes its failure an error."""
    output = subprocess.run(
        [*_SOJOURN, "loadtest", "--url", url, *options, "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=check,
    ).stdout
    report: dict[str, Any] = json.loads(output)
    return report


def running_replicas(dashboard: str) -> dict[str, int]:
    """Return the process id of each running replica, by Ray Serve's own status."""
    (application,) = ServeApi(dashboard).details()["applications"].values()
    (deployment,) = application["deployments"].values()
    replicas = deployment["replicas"]
    return {one["replica_id"]: one["pid"] for one in replicas if one["state"] == "RUNNING"}


class ReplicaWatcher(threading.Thread):
    """Counts the running replicas at a fixed interval, by ``time.monotonic``, until `end`."""

    def __init__(self, dashboard: str, interval_s: float) -> None:
        super().__init__(daemon=True)
        self.counts: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._dashboard = dashboard
        self._interval_s = interval_s

    def run(self) -> None:
        while not self._ended.wait(self._interval_s):
            replicas = running_replicas(self._dashboard)
            self.counts.append((time.monotonic(), len(replicas)))

    def end(self) -> None:
        self._ended.set()
        self.join()
