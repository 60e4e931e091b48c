"""The HTTP path of Sojourn beside other model servers: how much, how soon, and how much in time.

Every server hosts the same models, one process for the model, in turn on this machine:

- requests per second at 1, 64 and 256 connections (`wrk`), of a tiny MLP, of the digits model, and
  of a sentence model (where `sojourn[sentences]` is installed, by the servers of this environment);
- goodput: the highest Poisson rate at which 99% are answered within the SLA, on an emulated device,
  on the MLP and on the sentence model;
- overload: 1.5 times what that device can do, clients who give up, and items that make it fail.

::

    python -m benchmarks.live.data_path [--quick] [--json] [--peers mosec,ray_serve]

Needs `wrk` (on Debian: apt-get install wrk). The peers' environments (1 GB each) are made when
first needed, below ~/.cache/sojourn-benchmarks or $SOJOURN_BENCHMARK_CACHE. What cannot be measured
here is left out, and the reason is printed.
"""

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

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
from benchmarks.peers.protocols import Questions, example_rows
from benchmarks.peers.servers import SERVERS, Server, serving
from benchmarks.peers.sojourn_config import PERCENTILE
from deployments.errors import StartError

QUICK = ("bare_uvicorn", "ray_serve", "ray_serve_tuned", "mosec")
QUESTIONS = 32
WARM_UP_S = 1


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes
    ----------
    models : tuple of str
        For requests per second.
    connections : tuple of int
        Likewise.
    closed_s : int
        Seconds of each such run.
    open_s : float
        Seconds of each run of the search for the goodput.
    rounds : int
        Runs of that search.
    model_open_s : float
        Likewise, for the goodput on a real model.
    model_rounds : int
        Runs of that search.
    open_servers : tuple of str
        Servers whose goodput is measured; empty: all.
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
#: The models whose goodput is measured, besides the emulated device.
GOODPUT_MODELS = ("mlp", "minilm")


@dataclass
class Results:
    """All that was measured, by server; and why the rest was not."""

    possible_per_s: float
    closed: dict[str, dict[str, list[ClosedLoop]]] = field(default_factory=dict)
    probes: dict[str, list[Probe]] = field(default_factory=dict)
    model_probes: dict[str, dict[str, list[Probe]]] = field(default_factory=dict)
    overloads: dict[str, Overload] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)

    def requests_per_s(self, model: str = "mlp", connections: int = 64) -> dict[str, float]:
        """Give the requests per second of each server."""
        return {
            name: run.requests_per_s
            for name, models in self.closed.items()
            for run in models.get(model, [])
            if run.connections == connections
        }

    def goodput_fraction(self) -> dict[str, float]:
        """Give the goodput of each server, of what the model of `policy` says is possible."""
        return {
            name: best_rate_per_s(probes) / self.possible_per_s
            for name, probes in self.probes.items()
        }

    def model_goodput_per_s(self) -> dict[str, dict[str, float]]:
        """Give the goodput of each server on each real model, by the model."""
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
        """Give all of it for JSON."""
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
    """Measure the requests per second of a server with a model in it, and its goodput on some."""
    questions = Questions(model, server.dialect, example_rows(model, QUESTIONS))
    with serving(server, model, questions):
        closed_loop(questions, 64, WARM_UP_S)
        runs = results.closed.setdefault(server.name, {}).setdefault(model, [])
        for connections in plan.connections:
            run = closed_loop(questions, connections, plan.closed_s)
            runs.append(run)
            _tell(f"  {connections} connections: {run.requests_per_s:.0f} requests/s")
        if model in GOODPUT_MODELS and server.name in (plan.open_servers or SERVERS):
            highest_per_s = max(run.requests_per_s for run in runs)
            limit_ms = HOSTED[model].response_time_ms
            probes = goodput(
                questions, highest_per_s, plan.model_open_s, plan.model_rounds, limit_ms
            )
            results.model_probes.setdefault(server.name, {})[model] = probes
            _tell(f"  {limit_ms:g} ms kept up to {best_rate_per_s(probes):.0f} requests/s")


def measure_open(server: Server, plan: Plan, results: Results) -> None:
    """Measure what a server does with the emulated device."""
    questions = Questions("emulated", server.dialect, example_rows("emulated", 4096))
    with serving(server, "emulated", questions) as batches:
        probes = goodput(questions, results.possible_per_s, plan.open_s, plan.rounds)
        results.probes[server.name] = probes
        _tell(f"  SLA kept up to {best_rate_per_s(probes):.0f} requests/s")
        result = overload(server.dialect, batches, plan.open_s)
        results.overloads[server.name] = result
        _tell(f"  overloaded: {result.goodput_per_s:.0f} requests/s in time")


def measure(names: list[str], plan: Plan) -> Results:
    """Measure all servers, one after the other."""
    results = Results(possible_rate_per_s())
    for name in names:
        server = SERVERS[name]
        for model in plan.models:
            if model not in server.hosts:
                continue
            with _noted(name, model, results):
                measure_closed(server, model, plan, results)
        if name in (plan.open_servers or names):
            with _noted(name, "emulated device", results):
                measure_open(server, plan, results)
    return results


@contextmanager
def _noted(name: str, what: str, results: Results) -> Iterator[None]:
    """Tell what is measured; where it cannot be, keep the reason and go on."""
    _tell(f"{name}: {what}")
    try:
        yield
    except (UnavailableError, StartError) as error:
        _tell(f"{name}: {what}: {error}")
        reasons = [results.unavailable.get(name), f"{what}: {error}"]
        results.unavailable[name] = "; ".join(filter(None, reasons))


def _tell(what: str) -> None:
    print(f"data_path: {what}", file=sys.stderr, flush=True)


def print_results(results: Results) -> None:
    """Print it for people."""
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
        f"\n{PERCENTILE:g}% within {RESPONSE_TIME_MS:g} ms on the emulated device: the model of "
        f"policy/ says {results.possible_per_s:.0f}/s is possible"
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
    """Give the servers to measure, Sojourn first."""
    peers = [name for name in SERVERS if name != "sojourn"]
    if text is None:
        return ["sojourn", *(QUICK if quick else peers)]
    asked = [name for name in text.split(",") if name]
    unknown = sorted(set(asked) - set(peers))
    if unknown:
        raise SystemExit(f"--peers: there is no {unknown[0]!r}, only {', '.join(peers)}")
    return ["sojourn", *asked]


def main() -> None:
    """Measure, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer, shorter runs: 4 minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--peers", help="which, separated by commas; none: --peers ''")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed (on Debian: apt-get install wrk)")
    names = parse_peers(options.peers, options.quick)
    # Run in the background of a script, it would ignore Ctrl-C and hand that on to the servers,
    # which end by it; and ended itself, it must not leave one behind.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = measure(names, QUICK_PLAN if options.quick else FULL_PLAN)
    if options.json:
        print(json.dumps(results.to_dict(), indent=1))
    else:
        print_results(results)


if __name__ == "__main__":
    main()
