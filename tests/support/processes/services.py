"""Real services for the integration tests: `sojourn serve` in its own process."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from deployments.haproxy.admin_socket import AdminError, ask
from deployments.haproxy.server_checks import parse_servers
from deployments.local.serve_api import ServeApi
from tests.support.ports import free_port
from tests.support.waiting import LIMIT_S, wait_for

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
#: For how long a request may wait; `wait_for` asks again.
REQUEST_S = 30.0
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


@dataclass(frozen=True)
class Running:
    """A service under test."""

    url: str
    summary: dict[str, Any]
    process: psutil.Process
    config: Path

    def processes(self) -> dict[psutil.Process, list[str]]:
        """Return the processes below `sojourn serve` that run, with the words of their commands."""
        found = {}
        for child in self.process.children(recursive=True):
            with suppress(psutil.Error):  # it has ended meanwhile
                found[child] = child.cmdline() or [child.name()]
        return found

    def replicas(self) -> dict[int, psutil.Process]:
        """Return the processes of the replicas by process id."""
        return {
            process.pid: process
            for process, words in self.processes().items()
            if words[0].startswith("ray::ServeReplica")
        }

    def listens_beyond_this_machine(self) -> set[tuple[str, int]]:
        """Return the addresses at which the run's processes listen to other machines."""
        return {
            (connection.laddr.ip, connection.laddr.port)
            for process in (self.process, *self.process.children(recursive=True))
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr.ip not in LOOPBACK
        }

    def servers_up(self) -> int:
        """Return how many replicas HAProxy sends requests to.

        A replica's process runs for some seconds before HAProxy knows of it.
        """
        for process, words in self.processes().items():
            with suppress(psutil.Error, AdminError, ValueError):
                if process.name() == "haproxy":
                    socket_path = Path(words[words.index("-f") + 1]).with_name("admin.sock")
                    servers = parse_servers(
                        ask(socket_path, b"show stat -1 4 -1", LIMIT_S).decode()
                    )
                    return sum(one.up for one in servers if not one.backup)
        return 0

    def redeploy(self, document: dict[str, Any]) -> None:
        ServeApi(self.summary["dashboard"]).deploy(document)

    def serve_instead(self, document: dict[str, Any]) -> "Running":
        """Serve `document`, and nothing else; return this once all of its applications run.

        That takes half of the time of a start of Ray. The autoscaler and the metrics tell
        applications apart by their names: one of a new name knows of no earlier load.
        """
        self.redeploy(document)
        wanted = {entry["name"]: entry["route_prefix"] for entry in document["applications"]}

        def is_all_that_runs() -> bool:
            states = {name: entry["status"] for name, entry in self.applications().items()}
            assert "DEPLOY_FAILED" not in [states.get(name) for name in wanted], states
            return states == dict.fromkeys(wanted, "RUNNING")

        def answers(route_prefix: str) -> bool:
            ready = f"{self.url}{route_prefix.rstrip('/')}/v2/health/ready"
            return get(ready).status_code == 200

        assert wait_for(is_all_that_runs)
        assert wait_for(lambda: all(answers(prefix) for prefix in wanted.values()))
        return self

    def applications(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = ServeApi(self.summary["dashboard"]).details()[
            "applications"
        ]
        return found


@contextmanager
def serving(config: Path, document: dict[str, Any], *options: str) -> Iterator[Running]:
    """Write `document` to `config` and serve it until the context ends; leave no process behind.

    What the command says goes to a file beside `config`, with the suffix ``.log``.
    """
    config.write_text(yaml.safe_dump(document))
    command = [BIN / "sojourn", "serve", config, "--port", str(free_port()), "--json", *options]
    log = config.with_suffix(".log")
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.rstrip() == "}":
                break
        else:
            process.stdout.close()
            process.wait(LIMIT_S)
            raise AssertionError(f"sojourn serve did not come up: {log.read_text()}")
        running = psutil.Process(process.pid)
        summary = json.loads("".join(lines))
        started = running.children(recursive=True)
        try:
            first = summary.get("models", [summary])[0]
            yield Running(first["url"], summary, running, config)
        finally:
            started += running.children(recursive=True)
            process.send_signal(signal.SIGINT)
            status = process.wait(LIMIT_S)
            process.stdout.close()
        assert status == 0, log.read_text()
        _, alive = psutil.wait_procs(started, timeout=LIMIT_S)
        assert not alive, f"left behind: {alive}"


def load_document(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "configs" / name).read_text())


def serving_late(document: dict[str, Any]) -> dict[str, Any]:
    """Have a config's models serve what is late: how fast this machine is, is not asked."""
    for application in document["applications"]:
        for deployment in application["deployments"]:
            user_config = deployment["user_config"]
            user_config["limits"] = {**user_config.get("limits", {}), "late": "serve"}
    return document


def get(url: str, **options: Any) -> httpx.Response:
    """Ask a service that may have to wait for a CPU."""
    return httpx.get(url, timeout=REQUEST_S, **options)


def post(url: str, **options: Any) -> httpx.Response:
    """Send to a service that may have to wait for a CPU."""
    return httpx.post(url, timeout=REQUEST_S, **options)
