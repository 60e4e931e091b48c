"""Compare Sojourn's HTTP path with other model servers: throughput, latency, goodput.

    python -m benchmarks.live.data_path [--quick] [--json] [--peers mosec,ray_serve] [--replicas 2]

The servers take turns on this machine, in several rounds, each round in the reverse order of the
one before. Each hosts the same models, with one process for the model (`--replicas` for more, of
the servers that can). Measured are:

- throughput: requests per second at 1, 64 and 256 connections (`wrk`), for a tiny MLP, the digits
  model, and a sentence model (if `sojourn[sentences]` is installed, and only for the servers of
  this environment);
- goodput: the highest Poisson rate at which 99% are answered within the SLA, on an emulated device,
  on the MLP and on the sentence model.

Figures are medians of the rounds, with the least and the greatest beside them; the sentence model
and the emulated device are measured in the first round only. CPU time per request is that of the
server's processes.

Needs `wrk` (on Debian: apt-get install wrk). The peers' virtual environments (1 GB each) are
created when first needed, below ~/.cache/sojourn-benchmarks or $SOJOURN_BENCHMARK_CACHE. What
cannot be measured on this machine is skipped, and the reason is printed. A quick run takes about
a quarter of an hour.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.peers.closed_loop import check_wrk, closed_loop
from benchmarks.peers.goodput import best_rate_per_s, goodput, possible_rate_per_s
from benchmarks.peers.models import HOSTED
from benchmarks.peers.protocols import Workload, example_rows
from benchmarks.peers.results import GOODPUT_MODELS, Results, print_results
from benchmarks.peers.servers import SERVERS, Server, UnavailableError, serving
from deployments.errors import StartError
from sojourn.output import print_json, say

QUICK = ("bare_uvicorn", "ray_serve_tuned", "mosec")
DISTINCT_REQUESTS = 32
#: Sojourn measures itself and solves its policy in its first ten seconds.
WARM_UP_S = 15


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes
    ----------
    rounds : int
        How often each server has its turn.
    models : tuple of str
        The models of the throughput runs of every round.
    models_once : tuple of str
        Further models, measured in the first round.
    connections : tuple of int
        The numbers of connections of the throughput runs.
    closed_s : int
        Length of each throughput run.
    emulated_s : float
        Length of each run that searches the goodput on the emulated device.
    emulated_probes : int
        Runs of that search.
    model_s : float
        Length of each run that searches the goodput on a real model.
    model_probes : int
        Runs of that search.
    open_servers : tuple of str
        Servers that are also measured in open loops; empty for all.
    """

    rounds: int
    models: tuple[str, ...]
    models_once: tuple[str, ...]
    connections: tuple[int, ...]
    closed_s: int
    emulated_s: float
    emulated_probes: int
    model_s: float
    model_probes: int
    open_servers: tuple[str, ...] = ()

    def measures_open(self, name: str) -> bool:
        """Return whether a server is measured in open loops."""
        return not self.open_servers or name in self.open_servers


FULL_PLAN = Plan(
    rounds=3,
    models=("mlp", "digits"),
    models_once=("minilm",),
    connections=(1, 64, 256),
    closed_s=5,
    emulated_s=10.0,
    emulated_probes=5,
    model_s=5.0,
    model_probes=5,
)
QUICK_PLAN = Plan(
    rounds=3,
    models=("mlp",),
    models_once=(),
    connections=(64,),
    closed_s=2,
    emulated_s=4.0,
    emulated_probes=4,
    model_s=2.0,
    model_probes=3,
    open_servers=("sojourn", "mosec"),
)


def measure_model(server: Server, model: str, plan: Plan, replicas: int, results: Results) -> None:
    """Measure a server's throughput with a model, and its goodput."""
    workload = Workload(model, server.dialect, example_rows(model, DISTINCT_REQUESTS))
    limit_ms = HOSTED[model].response_time_ms
    with serving(server, model, workload, replicas) as running:
        closed_loop(workload, 64, WARM_UP_S, running.pid)
        new = [
            closed_loop(workload, connections, plan.closed_s, running.pid)
            for connections in plan.connections
        ]
        results.closed.setdefault(server.name, {}).setdefault(model, []).extend(new)
        for run in new:
            say_progress(f"  {run.connections} connections: {run.requests_per_s:.0f} requests/s")
        if not plan.measures_open(server.name):
            return
        if model in GOODPUT_MODELS:
            highest_per_s = max(run.requests_per_s for run in new)
            probes = goodput(workload, highest_per_s, plan.model_s, plan.model_probes, limit_ms)
            of_model = results.model_probes.setdefault(server.name, {})
            of_model.setdefault(model, []).append(probes)
            say_progress(f"  {limit_ms:g} ms kept up to {best_rate_per_s(probes):.0f} requests/s")


def measure_emulated(server: Server, plan: Plan, replicas: int, results: Results) -> None:
    """Measure a server's goodput on the emulated device."""
    workload = Workload("emulated", server.dialect, example_rows("emulated", 4096))
    with serving(server, "emulated", workload, replicas):
        probes = goodput(workload, results.possible_per_s, plan.emulated_s, plan.emulated_probes)
        results.probes[server.name] = probes
        say_progress(f"  SLA kept up to {best_rate_per_s(probes):.0f} requests/s")


def measure(names: list[str], plan: Plan, replicas: int = 1) -> Results:
    """Measure all servers, one after the other, round by round."""
    results = Results(possible_rate_per_s())
    for number in range(plan.rounds):
        models = (*plan.models, *plan.models_once) if number == 0 else plan.models
        for name in names if number % 2 == 0 else reversed(names):
            server = SERVERS[name]
            for model in models:
                if model not in server.hosts:
                    continue
                with _skipping_unavailable(name, model, results):
                    measure_model(server, model, plan, replicas, results)
            if number == 0 and replicas == 1 and plan.measures_open(name):
                with _skipping_unavailable(name, "emulated device", results):
                    measure_emulated(server, plan, replicas, results)
    return results


@contextmanager
def _skipping_unavailable(name: str, what: str, results: Results) -> Iterator[None]:
    """Say what is measured; if the server is unavailable, record the reason and go on."""
    say_progress(f"{name}: {what}")
    try:
        yield
    except (UnavailableError, StartError) as error:
        say_progress(f"{name}: {what}: {error}")
        reason = f"{what}: {error}"
        known = results.unavailable.get(name)
        if known is None or reason not in known:
            results.unavailable[name] = "; ".join(filter(None, (known, reason)))


def say_progress(message: str) -> None:
    """Print a line of progress on standard error."""
    say(f"data_path: {message}")


def parse_peers(text: str | None, quick: bool, replicas: int = 1) -> list[str]:
    """Return the servers to measure, Sojourn first."""
    peers = [
        name
        for name, server in SERVERS.items()
        if name != "sojourn" and (replicas == 1 or server.scalable)
    ]
    if text is None:
        return ["sojourn", *(name for name in peers if name in QUICK or not quick)]
    asked = [name for name in text.split(",") if name]
    unknown = sorted(set(asked) - set(peers))
    if unknown:
        raise click.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(peers)}", param_hint="--peers"
        )
    return ["sojourn", *asked]


@click.command()
@click.option("--peers", help="Other servers to measure, separated by commas; '' for none.")
@click.option(
    "--replicas",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes that hold the model; above 1, only servers that can have several are measured.",
)
@quick_option("Fewer and shorter runs; takes about 10 minutes.")
@json_option
def main(peers: str | None, replicas: int, quick: bool, as_json: bool) -> None:
    """Compare Sojourn's HTTP path with other model servers."""
    names = parse_peers(peers, quick, replicas)
    check_wrk()
    # A shell starts background jobs with SIGINT ignored, and the servers, which are stopped by it,
    # would inherit that. SIGTERM must not leave a server behind either.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = measure(names, QUICK_PLAN if quick else FULL_PLAN, replicas)
    if as_json:
        print_json(results.to_dict())
    else:
        print_results(results)


if __name__ == "__main__":
    main()
