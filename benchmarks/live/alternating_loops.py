"""Loads that take turns between two services of one machine, and what they cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import click
import numpy as np
import psutil

from benchmarks.live.bare_replicas import BareReplicas
from benchmarks.peers.closed_loop import closed_loop
from benchmarks.peers.protocols import Workload
from sojourn.output import print_json

CONNECTIONS = 64
RUN_S = 2
Found = dict[str, list[dict[str, float]]]


@dataclass(frozen=True)
class Way:
    """A replica behind a HAProxy of its own.

    Attributes
    ----------
    port : int
        HAProxy's.
    balancer, replica : int
        Their processes.
    """

    port: int
    balancer: int
    replica: int


def way_to(running: BareReplicas) -> Way:
    """Return the way to the only replica behind a HAProxy."""
    return Way(running.port, running.balancer, *running.replicas.values())


#: Loads a service for a while, and returns what it found.
Run = Callable[[], dict[str, float]]


def take_turns(runs: Mapping[str, Run], rounds: int) -> Found:
    """Return what each run found in each round, besides one that warms up."""
    found: Found = {name: [] for name in runs}
    for number in range(-1, rounds):
        for name in list(runs) if number % 2 else list(runs)[::-1]:
            row = runs[name]()
            if number >= 0:
                found[name].append(row)
    return found


def closed_loop_on(way: Way, workload: Workload) -> Run:
    """Return what runs a closed loop for `RUN_S`; it raises `ClickException` for wrong answers."""

    def load() -> tuple[float, dict[str, float]]:
        result = closed_loop(workload, CONNECTIONS, RUN_S, way.replica, way.port)
        if result.failed or result.wrong:
            raise click.ClickException(f"failed answers: {result}")
        return result.requests_per_s * RUN_S, {"requests_per_s": result.requests_per_s}

    return lambda: with_costs(way, load)


def with_costs(way: Way, load: Callable[[], tuple[float, dict[str, float]]]) -> dict[str, float]:
    """Load a service, and return what `load` found besides CPU time per answer, in µs.

    `load` also returns how many requests were answered.
    """
    before_s = _cpu_s(way.replica), _cpu_s(way.balancer)
    answers, row = load()
    after_s = _cpu_s(way.replica), _cpu_s(way.balancer)
    replica_us, haproxy_us = (1e6 * np.subtract(after_s, before_s) / answers).tolist()
    costs = {"replica_us": replica_us, "haproxy_us": haproxy_us, "both_us": replica_us + haproxy_us}
    return {**row, **costs}


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def summary(found: Found) -> dict[str, dict[str, list[float]]]:
    """Return the quartiles of each quantity by way, and of the second's ratio to the first."""
    one, other = found
    result: dict[str, dict[str, list[float]]] = {}
    for quantity in found[one][0]:
        before, after = (np.array([row[quantity] for row in found[way]]) for way in (one, other))
        columns = {one: before, other: after, f"{other} / {one}": after / before}
        result[quantity] = {
            column: [float(value) for value in np.percentile(each, (25, 50, 75))]
            for column, each in columns.items()
        }
    return result


def show(results: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], as_json: bool) -> None:
    """Print the summaries of models, as medians with their quartiles."""
    if as_json:
        print_json(results)
        return
    columns = list(next(iter(next(iter(results.values())).values())))
    print(f"{'model':8}{'':16}" + "".join(f"{column:>26}" for column in columns))
    for model, quantities in results.items():
        for quantity, values in quantities.items():
            cells = "".join(f"{_cell(values[column]):>26}" for column in columns)
            print(f"{model:8}{quantity:16}{cells}")


def _cell(quartiles: Sequence[float]) -> str:
    low, middle, high = (f"{one:.4g}" if one < 1000 else f"{one:.0f}" for one in quartiles)
    return f"{middle} [{low}-{high}]"
