"""What a request costs where HAProxy reaches a replica over a Unix socket, and where over TCP.

    python -m benchmarks.live.replica_sockets [--quick] [--json]

One replica without Ray listens on both, and a HAProxy of its own stands before each. A closed loop
of 64 connections takes turns between the two, for each model. Reported are requests per second and
CPU time per request of HAProxy and of the replica, as medians of the rounds with their quartiles,
and the ratio of Unix to TCP within each round.

Needs `wrk` (on Debian: apt-get install wrk).
"""

import tempfile
from pathlib import Path

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.live.alternating_loops import Found, Way, closed_loop_on, show, summary, take_turns
from benchmarks.live.bare_replicas import bare_replicas
from benchmarks.peers.closed_loop import check_wrk
from benchmarks.peers.models import HOSTED
from benchmarks.peers.protocols import OpenInference, Workload, example_rows
from deployments.haproxy.alone import haproxy
from sojourn.output import say
from tests.support.ports import free_port

MODELS = ("mlp", "digits")
#: The SLA is far away, so that no request is refused.
OPTIONS = ("--response-time-ms", "1000", "--objective", "weights", "--cpus", "1")


def measure(name: str, rounds: int) -> Found:
    """Return what each round found, by the way to the replica."""
    workload = Workload(name, OpenInference(), example_rows(name, 256))
    with (
        bare_replicas(1, name, HOSTED[name].import_path, *OPTIONS) as running,
        tempfile.TemporaryDirectory() as folder,
    ):
        ((server_port, replica),) = running.replicas.items()
        port = free_port()
        servers = {"r0-front": server_port}
        with haproxy(port, servers, Path(folder) / "tcp.sock", over_unix=False) as over_tcp:
            ways = {
                "TCP": Way(port, over_tcp, replica),
                "Unix": Way(running.port, running.balancer, replica),
            }
            runs = {label: closed_loop_on(way, workload) for label, way in ways.items()}
            return take_turns(runs, rounds)


@click.command()
@quick_option("Five rounds instead of 20.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure both ways from HAProxy to a replica."""
    check_wrk()
    results = {}
    for name in MODELS:
        say(f"replica_sockets: {name}")
        results[name] = summary(measure(name, 5 if quick else 20))
    show(results, as_json)


if __name__ == "__main__":
    main()
