"""Compare Sojourn's HTTP path with other model servers: throughput, latency, goodput.

    python -m benchmarks.live.data_path [--quick] [--json] [--peers mosec,ray_serve] [--replicas 2]

The servers take turns on this machine, in several rounds, each round in the reverse order of the
one before. Each hosts the same models, with one process for the model (`--replicas` for more, of
the servers that can). Measured are:

- throughput: requests per second at 1, 64 and 256 connections (`wrk`), for a tiny MLP and the
  digits model;
- goodput: the highest Poisson rate at which 99% are answered within the SLA, on the MLP and, in the
  first round, on an emulated device.

Figures are medians of the rounds, with the least and the greatest. Needs `wrk` (on Debian: apt-get
install wrk). Mosec's virtual environment (1 GB) is created when first needed, below
~/.cache/sojourn-benchmarks or $SOJOURN_BENCHMARK_CACHE. What cannot be measured on this machine is
skipped, and the reason is printed. A quick run takes about ten minutes.
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import click

from benchmarks.arguments import json_option, print_result, quick_option
from benchmarks.peers.closed_loop import ClosedLoop, check_wrk, closed_loop
from benchmarks.peers.goodput import Probe, best_rate_per_s, goodput, possible_rate_per_s
from benchmarks.peers.models import HOSTED
from benchmarks.peers.protocols import Workload, example_rows
from benchmarks.peers.servers import SERVERS, Server, UnavailableError, serving
from sojourn.output import say

DISTINCT_REQUESTS = 32
#: Sojourn measures itself and solves its policy in its first ten seconds.
WARM_UP_S = 15
ROUNDS = 3


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes
    ----------
    closed_s : int
        Length of each throughput run.
    emulated_s, model_s : float
        Length of each run that searches the goodput, on the emulated device and on the MLP.
    """

    models: tuple[str, ...]
    connections: tuple[int, ...]
    closed_s: int
    emulated_s: float
    model_s: float
    probes: int


FULL_PLAN = Plan(("mlp", "digits"), (1, 64, 256), 5, 10.0, 5.0, 5)
QUICK_PLAN = Plan(("mlp",), (64,), 2, 4.0, 2.0, 3)


@dataclass
class Results:
    """All results, and the reason for each that is missing.

    Attributes
    ----------
    possible_per_s : float
        The highest rate within the SLA on the emulated device, by the batching model.
    closed : dict of (str, str, int) to list of ClosedLoop
        The rounds' runs by server, model and number of connections.
    emulated, mlp : dict of str to list
        The searches of the goodput by server: one on the emulated device, one a round on the MLP.
    unavailable : dict of str to str
        By server: why something was not measured.
    """

    possible_per_s: float
    closed: dict[tuple[str, str, int], list[ClosedLoop]] = field(default_factory=dict)
    emulated: dict[str, list[Probe]] = field(default_factory=dict)
    mlp: dict[str, list[list[Probe]]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        rates = {
            name: spread(run.requests_per_s for run in runs)
            for (name, model, connections), runs in self.closed.items()
            if (model, connections) == ("mlp", 64)
        }
        ours = rates.get("sojourn", {"median": float("nan")})["median"]
        searches = [
            *self.emulated.values(),
            *(one for rounds in self.mlp.values() for one in rounds),
        ]
        return {
            "requests_per_s": {name: rate["median"] for name, rate in rates.items()},
            "sojourn_to": {name: ours / rate["median"] for name, rate in rates.items()},
            "goodput_fraction": {
                name: best_rate_per_s(probes) / self.possible_per_s
                for name, probes in self.emulated.items()
            },
            "goodput_per_s": {
                "mlp": {
                    name: spread(map(best_rate_per_s, rounds)) for name, rounds in self.mlp.items()
                }
            },
            "wrong_answers": sum(probe.wrong for probes in searches for probe in probes),
            "possible_per_s": self.possible_per_s,
            "unavailable": self.unavailable,
            "throughput": [
                {
                    "server": name,
                    "model": model,
                    "connections": connections,
                    "requests_per_s": spread(run.requests_per_s for run in runs),
                    "p50_ms": median(run.p50_ms for run in runs),
                    "p99_ms": median(run.p99_ms for run in runs),
                    "failed": sum(run.failed for run in runs),
                }
                for (name, model, connections), runs in self.closed.items()
            ],
        }


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return the median of the rounds, and the extremes."""
    ordered = sorted(values)
    return {"median": median(ordered), "low": ordered[0], "high": ordered[-1]}


def measure_model(server: Server, model: str, plan: Plan, replicas: int, results: Results) -> None:
    """Measure a server's throughput with a model, and its goodput on the MLP."""
    workload = Workload(model, server.dialect, example_rows(model, DISTINCT_REQUESTS))
    limit_ms = HOSTED[model].response_time_ms
    with serving(server, model, workload, replicas):
        closed_loop(workload, 64, WARM_UP_S)
        highest_per_s = 0.0
        for connections in plan.connections:
            run = closed_loop(workload, connections, plan.closed_s)
            results.closed.setdefault((server.name, model, connections), []).append(run)
            highest_per_s = max(highest_per_s, run.requests_per_s)
            say(f"  {connections} connections: {run.requests_per_s:.0f} requests/s")
        if model == "mlp":
            probes = goodput(workload, highest_per_s, plan.model_s, plan.probes, limit_ms)
            results.mlp.setdefault(server.name, []).append(probes)
            say(f"  {limit_ms:g} ms kept up to {best_rate_per_s(probes):.0f} requests/s")


def measure_emulated(server: Server, plan: Plan, results: Results) -> None:
    """Measure a server's goodput on the emulated device."""
    workload = Workload("emulated", server.dialect, example_rows("emulated", 4096))
    with serving(server, "emulated", workload):
        probes = goodput(workload, results.possible_per_s, plan.emulated_s, plan.probes)
    results.emulated[server.name] = probes
    say(f"  SLA kept up to {best_rate_per_s(probes):.0f} requests/s on the emulated device")


def measure(names: list[str], plan: Plan, replicas: int) -> Results:
    """Measure all servers, one after the other, round by round."""
    results = Results(possible_rate_per_s())
    for number in range(ROUNDS):
        for name in names if number % 2 == 0 else reversed(names):
            if name in results.unavailable:
                continue
            say(f"data_path: round {number + 1}, {name}")
            try:
                for model in plan.models:
                    measure_model(SERVERS[name], model, plan, replicas, results)
                if number == 0 and replicas == 1:
                    measure_emulated(SERVERS[name], plan, results)
            except UnavailableError as error:
                results.unavailable[name] = str(error)
    return results


def parse_peers(text: str | None, replicas: int) -> list[str]:
    """Return the servers to measure, Sojourn first."""
    peers = [name for name, one in SERVERS.items() if replicas == 1 or one.scalable][1:]
    asked = peers if text is None else [name for name in text.split(",") if name]
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
    names = parse_peers(peers, replicas)
    check_wrk()
    # A shell starts background jobs with SIGINT ignored, and the servers, which are stopped by it,
    # would inherit that. SIGTERM must not leave a server behind either.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print_result(measure(names, QUICK_PLAN if quick else FULL_PLAN, replicas).to_dict(), as_json)


if __name__ == "__main__":
    main()
