"""Throughput in the first seconds of a server, beside another model server.

    python -m benchmarks.live.first_seconds [--quick] [--json] [--model NAME] [--replicas 2]

Sojourn and Mosec are started in turns on this machine, and `wrk` loads each over 64 connections
from when it answers, in pieces of 2 s. A replica of Sojourn measures itself and solves its policy
meanwhile. Reported are quartiles over the rounds: of the requests per second in the first piece,
in the first 10 s, and in all 16 s.
"""

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.live.alternating_loops import Run, show, summary, take_turns
from benchmarks.peers.closed_loop import check_wrk, closed_loop
from benchmarks.peers.environments import UnavailableError
from benchmarks.peers.protocols import Workload, example_rows
from benchmarks.peers.servers import SERVERS, serving
from sojourn.output import say

MODELS = ("mlp", "digits")
SERVERS_IN_TURN = ("mosec", "sojourn")
CONNECTIONS = 64
DISTINCT_REQUESTS = 32
PIECE_S, FIRST_PIECES, PIECES = 2, 5, 8


def start_of(name: str, model: str, replicas: int) -> Run:
    """Return what starts a server, loads it and stops it."""
    server = SERVERS[name]
    workload = Workload(model, server.dialect, example_rows(model, DISTINCT_REQUESTS))

    def run() -> dict[str, float]:
        with serving(server, model, workload, replicas) as running:
            loads = [
                closed_loop(workload, CONNECTIONS, PIECE_S, running.pid) for _ in range(PIECES)
            ]
        per_s = [load.requests_per_s for load in loads]
        return {
            "per_s_in_2_s": per_s[0],
            "per_s_in_10_s": sum(per_s[:FIRST_PIECES]) / FIRST_PIECES,
            "per_s_in_16_s": sum(per_s) / PIECES,
        }

    return run


@click.command()
@quick_option("Two rounds instead of five.")
@json_option
@click.option("--model", type=click.Choice(MODELS), help="Only this one.")
@click.option(
    "--replicas",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes that hold the model, of either server.",
)
def main(quick: bool, as_json: bool, model: str | None, replicas: int) -> None:
    """Measure the throughput of servers from their start on."""
    check_wrk()
    results = {}
    try:
        for name in (model,) if model else MODELS:
            say(f"first_seconds: {name}")
            runs = {server: start_of(server, name, replicas) for server in SERVERS_IN_TURN}
            results[name] = summary(take_turns(runs, 2 if quick else 5))
    except UnavailableError as error:
        raise click.ClickException(str(error)) from None
    show(results, as_json)


if __name__ == "__main__":
    main()
