"""Compare Sojourn's HTTP path with other model servers: throughput, latency, goodput, overload.

    python -m benchmarks.live.data_path [--quick] [--json] [--peers mosec,ray_serve]

The servers run one after the other on this machine. Each hosts the same models, with one process
for the model. Measured are:

- throughput: requests per second at 1, 64 and 256 connections (`wrk`), for a tiny MLP, the digits
  model, and a sentence model (if `sojourn[sentences]` is installed, and only for the servers of
  this environment);
- goodput: the highest Poisson rate at which 99% are answered within the SLA, on an emulated device,
  on the MLP and on the sentence model;
- overload: 1.5 times the capacity of the emulated device, with clients that give up and items that
  make their batch fail.

Needs `wrk` (on Debian: apt-get install wrk). The peers' virtual environments (1 GB each) are
created when first needed, below ~/.cache/sojourn-benchmarks or $SOJOURN_BENCHMARK_CACHE. What
cannot be measured on this machine is skipped, and the reason is printed. A quick run takes about
four minutes.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.peers.closed_loop import ClosedLoop, closed_loop
from benchmarks.peers.environments import UnavailableError
from benchmarks.peers.goodput import (
    RESPONSE_TIME_MS,
    Probe,
    best_rate_per_s,
    goodput,
    possible_rate_per_s,
)
from benchmarks.peers.models import HOSTED
from benchmarks.peers.overload import Overload, overload
from benchmarks.peers.protocols import Workload, example_rows
from benchmarks.peers.servers import SERVERS, Server, serving
from benchmarks.peers.sojourn_config import PERCENTILE
from deployments.errors import StartError
from sojourn.output import print_json, say

QUICK = ("bare_uvicorn", "ray_serve", "ray_serve_tuned", "mosec")
DISTINCT_REQUESTS = 32
WARM_UP_S = 1


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes
    ----------
    models : tuple of str
        The models of the throughput runs.
    connections : tuple of int
        The numbers of connections of the throughput runs.
    closed_s : int
        Length of each throughput run.
    open_s : float
        Length of each run that searches the goodput on the emulated device.
    rounds : int
        Runs of that search.
    model_open_s : float
        Length of each run that searches the goodput on a real model.
    model_rounds : int
        Runs of that search.
    open_servers : tuple of str
        Servers whose goodput is measured; empty for all.
    """

    models: tuple[str, ...]
    connections: tuple[int, ...]
    closed_s: int
    open_s: float
    rounds: int
    model_open_s: float
    model_rounds: int
    open_servers: tuple[str, ...] = ()


FULL_PLAN = Plan(("mlp", "digits", "minilm"), (1, 64, 256), 5, 10.0, 5, 5.0, 5)
QUICK_PLAN = Plan(("mlp",), (64,), 3, 4.0, 5, 2.0, 3, ("sojourn", "ray_serve_tuned", "mosec"))
#: The real models whose goodput is measured; it is always measured on the emulated device.
GOODPUT_MODELS = ("mlp", "minilm")


@dataclass
class Results:
    """All results by server, and the reason for each that is missing."""

    possible_per_s: float
    closed: dict[str, dict[str, list[ClosedLoop]]] = field(default_factory=dict)
    probes: dict[str, list[Probe]] = field(default_factory=dict)
    model_probes: dict[str, dict[str, list[Probe]]] = field(default_factory=dict)
    overloads: dict[str, Overload] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)

    def requests_per_s(self, model: str = "mlp", connections: int = 64) -> dict[str, float]:
        """Return the requests per second of each server."""
        return {
            name: run.requests_per_s
            for name, models in self.closed.items()
            for run in models.get(model, [])
            if run.connections == connections
        }

    def goodput_fraction(self) -> dict[str, float]:
        """Return each server's goodput, relative to what the batching model says is possible."""
        return {
            name: best_rate_per_s(probes) / self.possible_per_s
            for name, probes in self.probes.items()
        }

    def model_goodput_per_s(self) -> dict[str, dict[str, float]]:
        """Return the goodput of each server, by real model and server."""
        rates: dict[str, dict[str, float]] = {}
        for name, models in self.model_probes.items():
            for model, probes in models.items():
                rates.setdefault(model, {})[name] = best_rate_per_s(probes)
        return rates

    def wrong_answers(self) -> int:
        """Count the wrong answers of all servers and runs."""
        return sum(self.wrong_by_server().values())

    def wrong_by_server(self) -> dict[str, int]:
        """Count the wrong answers of each server."""
        wrong = dict.fromkeys([*self.closed, *self.probes, *self.overloads], 0)
        for name, models in self.closed.items():
            wrong[name] += sum(run.wrong for runs in models.values() for run in runs)
        for name, probes in self.probes.items():
            wrong[name] += sum(probe.wrong for probe in probes)
        for name, models_probed in self.model_probes.items():
            wrong[name] += sum(probe.wrong for runs in models_probed.values() for probe in runs)
        for name, result in self.overloads.items():
            wrong[name] += result.wrong
        return wrong

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        rates = self.requests_per_s()
        ours = rates.get("sojourn")
        return {
            "requests_per_s": rates,
            "sojourn_to": {name: ours / rate for name, rate in rates.items()} if ours else {},
            "goodput_fraction": self.goodput_fraction(),
            "goodput_per_s": self.model_goodput_per_s(),
            "wrong_answers": self.wrong_answers(),
            "wrong_by_server": self.wrong_by_server(),
            "unavailable": self.unavailable,
            "sla": {
                "response_time_ms": {
                    name: HOSTED[name].response_time_ms for name in (*GOODPUT_MODELS, "emulated")
                },
                "percentile": PERCENTILE,
            },
            "possible_per_s": self.possible_per_s,
            "closed_loop": {
                name: {model: [asdict(run) for run in runs] for model, runs in models.items()}
                for name, models in self.closed.items()
            },
            "goodput": {
                name: [asdict(probe) for probe in probes] for name, probes in self.probes.items()
            },
            "overload": {name: asdict(result) for name, result in self.overloads.items()},
            "cores": os.cpu_count(),
        }


def measure_closed(server: Server, model: str, plan: Plan, results: Results) -> None:
    """Measure a server's throughput with a model, and its goodput if the model is among those."""
    workload = Workload(model, server.dialect, example_rows(model, DISTINCT_REQUESTS))
    with serving(server, model, workload):
        closed_loop(workload, 64, WARM_UP_S)
        runs = results.closed.setdefault(server.name, {}).setdefault(model, [])
        for connections in plan.connections:
            run = closed_loop(workload, connections, plan.closed_s)
            runs.append(run)
            _log(f"  {connections} connections: {run.requests_per_s:.0f} requests/s")
        if model in GOODPUT_MODELS and server.name in (plan.open_servers or SERVERS):
            highest_per_s = max(run.requests_per_s for run in runs)
            limit_ms = HOSTED[model].response_time_ms
            probes = goodput(
                workload, highest_per_s, plan.model_open_s, plan.model_rounds, limit_ms
            )
            results.model_probes.setdefault(server.name, {})[model] = probes
            _log(f"  {limit_ms:g} ms kept up to {best_rate_per_s(probes):.0f} requests/s")


def measure_open(server: Server, plan: Plan, results: Results) -> None:
    """Measure a server's goodput and its overload behavior on the emulated device."""
    workload = Workload("emulated", server.dialect, example_rows("emulated", 4096))
    with serving(server, "emulated", workload) as batches:
        probes = goodput(workload, results.possible_per_s, plan.open_s, plan.rounds)
        results.probes[server.name] = probes
        _log(f"  SLA kept up to {best_rate_per_s(probes):.0f} requests/s")
        result = overload(server.dialect, batches, plan.open_s)
        results.overloads[server.name] = result
        _log(f"  overloaded: {result.goodput_per_s:.0f} requests/s in time")


def measure(names: list[str], plan: Plan) -> Results:
    """Measure all servers, one after the other."""
    results = Results(possible_rate_per_s())
    for name in names:
        server = SERVERS[name]
        for model in plan.models:
            if model not in server.hosts:
                continue
            with _skipping_unavailable(name, model, results):
                measure_closed(server, model, plan, results)
        if name in (plan.open_servers or names):
            with _skipping_unavailable(name, "emulated device", results):
                measure_open(server, plan, results)
    return results


@contextmanager
def _skipping_unavailable(name: str, what: str, results: Results) -> Iterator[None]:
    """Log what is measured; if the server is unavailable, record the reason and go on."""
    _log(f"{name}: {what}")
    try:
        yield
    except (UnavailableError, StartError) as error:
        _log(f"{name}: {what}: {error}")
        reasons = [results.unavailable.get(name), f"{what}: {error}"]
        results.unavailable[name] = "; ".join(filter(None, reasons))


def _log(message: str) -> None:
    say(f"data_path: {message}")


def print_results(results: Results) -> None:
    """Print all tables for people."""
    print(f"{'server':16}{'model':>9}{'conns':>6}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}", end="")
    print(f"{'failed':>8}{'checked':>9}{'wrong':>6}{'others':>8}{'Sojourn is':>12}")
    for name, models in results.closed.items():
        for model, runs in models.items():
            for run in runs:
                ours = results.requests_per_s(model, run.connections).get("sojourn", float("nan"))
                ratio = ours / run.requests_per_s if run.requests_per_s else float("inf")
                print(
                    f"{name:16}{model:>9}{run.connections:6}{run.requests_per_s:9.0f}"
                    f"{run.p50_ms:9.1f}{run.p99_ms:9.1f}{run.failed:8}{run.checked:9}"
                    f"{run.wrong:6}{run.others_cores:8.2f}{ratio:11.2f}×"
                )
    print(
        f"\n{PERCENTILE:g}% within {RESPONSE_TIME_MS:g} ms on the emulated device; the batching "
        f"model says {results.possible_per_s:.0f}/s is possible"
    )
    for name, fraction in results.goodput_fraction().items():
        print(f"{name:16}{fraction * results.possible_per_s:9.0f}/s{fraction:9.1%}")
    for model, rates in results.model_goodput_per_s().items():
        print(f"\n{PERCENTILE:g}% within {HOSTED[model].response_time_ms:g} ms on {model}")
        for name, rate in rates.items():
            print(f"{name:16}{rate:9.0f}/s")
    print(f"\n{'overload':16}{'goodput/s':>10}{'of capacity':>12}{'refused':>9}{'late':>8}", end="")
    print(f"{'wasted':>8}{'for gone':>9}{'wrong':>6}{'missing':>8}", end="")
    print(f"{'failed by others':>17}{'others':>8}")
    for name, result in results.overloads.items():
        wasted, gone = result.wasted_device_fraction, result.for_the_gone_fraction
        print(
            f"{name:16}{result.goodput_per_s:10.0f}{result.capacity_fraction:12.1%}"
            f"{result.refused_fraction:9.1%}{result.late_fraction:8.1%}"
            f"{'-' if wasted is None else f'{wasted:.1%}':>8}"
            f"{'-' if gone is None else f'{gone:.1%}':>9}"
            f"{result.wrong:6}{result.missing:8}{result.failed_by_others:17}"
            f"{result.others_cores:8.2f}"
        )
    for name, reason in results.unavailable.items():
        print(f"{name} was not measured: {reason}")


def parse_peers(text: str | None, quick: bool) -> list[str]:
    """Return the servers to measure, Sojourn first."""
    peers = [name for name in SERVERS if name != "sojourn"]
    if text is None:
        return ["sojourn", *(QUICK if quick else peers)]
    asked = [name for name in text.split(",") if name]
    unknown = sorted(set(asked) - set(peers))
    if unknown:
        raise click.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(peers)}", param_hint="--peers"
        )
    return ["sojourn", *asked]


@click.command()
@click.option("--peers", help="Other servers to measure, separated by commas; '' for none.")
@quick_option("Fewer and shorter runs; takes about 4 minutes.")
@json_option
def main(peers: str | None, quick: bool, as_json: bool) -> None:
    """Compare Sojourn's HTTP path with other model servers."""
    names = parse_peers(peers, quick)
    if shutil.which("wrk") is None:
        raise click.ClickException("wrk is not installed (on Debian: apt-get install wrk)")
    # A shell starts background jobs with SIGINT ignored, and the servers, which are stopped by it,
    # would inherit that. SIGTERM must not leave a server behind either.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = measure(names, QUICK_PLAN if quick else FULL_PLAN)
    if as_json:
        print_json(results.to_dict())
    else:
        print_results(results)


if __name__ == "__main__":
    main()
