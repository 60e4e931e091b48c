"""Kill Ray's GCS under load and start it again, with its tables in Redis and in memory alone.

    python -m benchmarks.resilience.gcs_restart [--only redis|memory] [--json]

`ray start --head` and `serve deploy` run configs/emulated-p4.yaml with two replicas, as on a
cluster of one node. Under the bystanders' load the GCS gets SIGKILL, and is started again ten
seconds later with its own command line, as Kubernetes does with a head's container. Afterwards a
third replica is ordered, to see whether the cluster can still be changed. Without Redis, the new
GCS knows nothing of the cluster. It takes about four minutes, and needs the program `redis-server`.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import psutil
import yaml

from benchmarks.arguments import json_option
from benchmarks.live.local_service import running_replicas
from benchmarks.resilience.load import Bystanders, Load, Target
from benchmarks.resilience.run import BEFORE_S
from benchmarks.resilience.service import Document, Service, emulated_document
from benchmarks.resilience.tally import Outcome, Request, tally
from deployments.local.descendants import adopted_orphans, descendants, end_descendants
from sojourn.output import print_json, print_table, say

PORT, DASHBOARD_PORT, GCS_PORT = 8132, 8266, 6391
DOWN_S, AFTER_S, SCALED_WITHIN_S = 10.0, 30.0, 40.0
REPLICAS = 2
COLUMNS = (
    *("sent", "right", "late", "refused", "failed", "wrong", "lost", "longest_gap_s"),
    *("recovered_s", "same_replicas", "scaled_s", "machine_load"),
)
_BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Process:
    """What it takes to start a process again."""

    command: list[str]
    environment: dict[str, str]
    folder: str

    @classmethod
    def of(cls, process: psutil.Process) -> "Process":
        """Note how a process was started."""
        return cls(process.cmdline(), process.environ(), process.cwd())

    def start(self) -> "subprocess.Popen[bytes]":
        """Start it again."""
        silent = subprocess.DEVNULL
        return subprocess.Popen(
            self.command, env=self.environment, cwd=self.folder, stdout=silent, stderr=silent
        )


@contextmanager
def redis() -> Iterator[dict[str, str]]:
    """Run a Redis with a password; yield the environment with which Ray finds it."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis-server is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        password = secrets.token_hex(16)
        config = Path(folder, "redis.conf")
        config.write_text(
            f"bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir {folder}\nappendonly yes\n"
        )
        server = subprocess.Popen([program, config], stdout=subprocess.DEVNULL)
        try:
            _wait_for_port(port)
            yield {"RAY_REDIS_ADDRESS": f"127.0.0.1:{port}", "RAY_REDIS_PASSWORD": password}
        finally:
            server.terminate()
            server.wait(10)


def _wait_for_port(port: int) -> None:
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise SystemExit("redis-server does not answer")


@contextmanager
def cluster(document: Document, storage: dict[str, str]) -> Iterator[Service]:
    """Run a head that serves `document`, and yield the service; leave no process behind."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(document))
        before = descendants()
        with adopted_orphans():
            try:
                yield _start(config, document, storage)
            finally:
                end_descendants(but=before)


def _start(config: Path, document: Document, storage: dict[str, str]) -> Service:
    start = f"""
        set -e -o pipefail
        source <(sojourn serve --environment {config})
        ray start --head --port {GCS_PORT} --dashboard-port {DASHBOARD_PORT} --num-cpus 2
        for second in $(seq 30); do
          serve deploy --address http://127.0.0.1:{DASHBOARD_PORT} {config} && exit
          sleep 1
        done
        exit 1
    """
    password = storage.get("RAY_REDIS_PASSWORD")
    if password is not None:
        start = start.replace("--num-cpus", f"--redis-password {password} --num-cpus")
    ran = subprocess.run(
        ["bash", "-c", start],
        env={**os.environ, **storage, "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        raise SystemExit(f"the cluster did not start: {ran.stderr[-2000:]}")
    sla = document["applications"][0]["deployments"][0]["user_config"]["sla"]
    target = Target(
        "127.0.0.1", PORT, "googlenet", 1e-3 * sla["response_time_ms"], sla["percentile"]
    )
    service = Service(target, f"http://127.0.0.1:{DASHBOARD_PORT}", psutil.Process(), document)
    if not service.wait_for_replicas(REPLICAS):
        raise SystemExit("the replicas did not start")
    service.wait_for_tables()
    return service


def longest_gap_s(requests: Sequence[Request], from_s: float) -> float:
    """Return the longest time after `from_s` in which no request got its right answer."""
    answered_s = sorted(
        one.finished_s
        for one in requests
        if one.outcome is Outcome.RIGHT and one.finished_s > from_s
    )
    until_s = max((one.finished_s for one in requests), default=from_s)
    times_s = [from_s, *answered_s, max(until_s, from_s)]
    return max(later - earlier for earlier, later in pairwise(times_s))


def run(name: str, storage: Callable[[], Any] | None) -> dict[str, Any]:
    """Run one variant and return its row.

    Parameters
    ----------
    name : str
    storage : callable or None
        Makes the context of the store in which the GCS keeps its tables; None: its own memory.
    """
    document = emulated_document(REPLICAS)
    document["http_options"] = {"host": "127.0.0.1", "port": PORT}
    with ExitStack() as stack:
        kept = stack.enter_context(storage()) if storage else {}
        service = stack.enter_context(cluster(document, kept))
        (gcs,) = service.named("gcs_server")
        again = Process.of(gcs)
        pids = {process.pid for process in service.replicas()}
        load = os.getloadavg()[0]
        bystanders = Bystanders(service.target, Load())
        bystanders.start()
        time.sleep(BEFORE_S)
        fault_s = time.monotonic()
        gcs.kill()
        time.sleep(DOWN_S)
        gcs_again = again.start()
        time.sleep(AFTER_S)
        same = sum(psutil.pid_exists(pid) for pid in pids)
        scaled_s = _scale(service, REPLICAS + 1)
        bystanders.end()
    gcs_again.wait()
    target = service.target
    counted = tally(
        bystanders.requests, bystanders.doubled, fault_s, target.sla_s, target.percentile
    )
    return {
        "tables": name,
        **asdict(counted),
        "longest_gap_s": longest_gap_s(bystanders.requests, fault_s),
        "same_replicas": same,
        "scaled_s": scaled_s,
        "machine_load": round(max(load, os.getloadavg()[0]), 1),
    }


def _scale(service: Service, count: int) -> float | None:
    """Deploy another number of replicas; return the seconds until they run, None if never."""
    document = deepcopy(service.document)
    document["applications"][0]["deployments"][0]["num_replicas"] = count
    started_s = time.monotonic()
    until_s = started_s + SCALED_WITHIN_S
    deployed = False
    while time.monotonic() < until_s:
        with suppress(OSError, ValueError, KeyError):
            if not deployed:
                service.deploy(document)
                deployed = True
            if len(running_replicas(service.dashboard)) == count:
                return time.monotonic() - started_s
        time.sleep(0.2)
    return None


VARIANTS: dict[str, Callable[[], Any] | None] = {"memory": None, "redis": redis}


@click.command(help=__doc__.splitlines()[0])
@click.option("--only", type=click.Choice(sorted(VARIANTS)), help="Run only this variant.")
@json_option
def main(only: str | None, as_json: bool) -> None:
    """Run the variants and print the table."""
    rows = []
    for name, storage in VARIANTS.items():
        if only in (None, name):
            say(f"the tables of the GCS in {name}")
            rows.append(run(name, storage))
    if as_json:
        print_json({"variants": rows})
        return
    os.environ.setdefault("COLUMNS", "130")
    print_table(("tables", *COLUMNS), [[row["tables"], *map(row.get, COLUMNS)] for row in rows])


if __name__ == "__main__":
    main()
