"""What a request costs where HAProxy reaches a replica over a Unix socket, and where over TCP.

    python -m benchmarks.live.replica_sockets [--quick] [--json]

One replica without Ray listens on both, and a HAProxy of its own stands before each. A closed loop
of 64 connections takes turns between the two, for each model. Reported are requests per second and
CPU time per request of HAProxy and of the replica, as medians of the rounds with their quartiles,
and the ratio of Unix to TCP within each round.

Needs `wrk` (on Debian: apt-get install wrk).
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

from benchmarks.arguments import json_option, quick_option
from benchmarks.live.bare_replicas import bare_replicas, until_open
from benchmarks.peers.closed_loop import closed_loop
from benchmarks.peers.models import HOSTED
from benchmarks.peers.protocols import OpenInference, Workload, example_rows
from deployments.haproxy.alone import haproxy
from sojourn.output import print_json, say
from tests.support.ports import free_port

MODELS = ("mlp", "digits")
CONNECTIONS = 64
RUN_S = 2
WAYS = ("TCP", "Unix")
COLUMNS = (*WAYS, "Unix / TCP")
#: So that no request is refused.
RESPONSE_TIME_MS = "1000"


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def measure(name: str, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return what each round found, by the way to the replica."""
    model = name, HOSTED[name].import_path
    options = "--response-time-ms", RESPONSE_TIME_MS, "--objective", "weights"
    workload = Workload(name, OpenInference(), example_rows(name, 256))
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with (
        bare_replicas(1, *model, *options) as running,
        tempfile.TemporaryDirectory() as folder,
    ):
        ((server_port, replica),) = running.replicas.items()
        port = free_port()
        servers = {"r0-front": server_port}
        with haproxy(port, servers, Path(folder) / "tcp.sock", over_unix=False) as over_tcp:
            until_open(port)
            ways = {"TCP": (port, over_tcp), "Unix": (running.port, running.balancer)}
            for number in range(-1, rounds):  # the first warms up
                for way in WAYS if number % 2 else WAYS[::-1]:
                    way_port, balancer = ways[way]
                    before_s = _cpu_s(replica), _cpu_s(balancer)
                    run = closed_loop(workload, CONNECTIONS, RUN_S, replica, way_port)
                    after_s = _cpu_s(replica), _cpu_s(balancer)
                    if run.failed or run.wrong:
                        raise click.ClickException(f"{way}: failed answers: {run}")
                    answers = run.requests_per_s * RUN_S
                    replica_us, haproxy_us = 1e6 * np.subtract(after_s, before_s) / answers
                    row = {
                        "requests_per_s": run.requests_per_s,
                        "replica_us": float(replica_us),
                        "haproxy_us": float(haproxy_us),
                        "both_us": float(replica_us + haproxy_us),
                    }
                    if number >= 0:
                        found[way].append(row)
    return found


def summary(found: Mapping[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return the quartiles of each quantity by way, and of the ratios of Unix to TCP."""
    values = {
        quantity: np.array([[row[quantity] for row in found[way]] for way in WAYS])
        for quantity in found["TCP"][0]
    }
    result: dict[str, Any] = {}
    for quantity, (tcp, unix) in values.items():
        result[quantity] = {
            column: [float(one) for one in np.percentile(each, (25, 50, 75))]
            for column, each in zip(COLUMNS, (tcp, unix, unix / tcp), strict=True)
        }
    return result


def _cell(quartiles: Sequence[float]) -> str:
    low, middle, high = (f"{one:.4g}" if one < 1000 else f"{one:.0f}" for one in quartiles)
    return f"{middle} [{low}-{high}]"


@click.command()
@quick_option("Five rounds instead of 20.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure both ways from HAProxy to a replica."""
    if shutil.which("wrk") is None:
        raise click.ClickException("wrk is not installed (on Debian: apt-get install wrk)")
    results = {}
    for name in MODELS:
        say(f"replica_sockets: {name}")
        results[name] = summary(measure(name, 5 if quick else 20))
    if as_json:
        print_json(results)
        return
    print(f"{'model':8}{'':16}" + "".join(f"{column:>26}" for column in COLUMNS))
    for name, quantities in results.items():
        for quantity, values in quantities.items():
            cells = "".join(f"{_cell(values[column]):>26}" for column in COLUMNS)
            print(f"{name:8}{quantity:16}{cells}")


if __name__ == "__main__":
    main()
