"""Closed loops that take turns between two services of one machine, and what they cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
import numpy as np
import psutil

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


def take_turns(ways: Mapping[str, Way], workload: Workload, rounds: int) -> Found:
    """Return what each round found, by the way.

    Raises
    ------
    ClickException
        A request was not answered right.
    """
    found: Found = {name: [] for name in ways}
    for number in range(-1, rounds):  # the first warms up
        for name in list(ways) if number % 2 else list(ways)[::-1]:
            row = _run(name, ways[name], workload)
            if number >= 0:
                found[name].append(row)
    return found


def _run(name: str, way: Way, workload: Workload) -> dict[str, float]:
    before_s = _cpu_s(way.replica), _cpu_s(way.balancer)
    run = closed_loop(workload, CONNECTIONS, RUN_S, way.replica, way.port)
    after_s = _cpu_s(way.replica), _cpu_s(way.balancer)
    if run.failed or run.wrong:
        raise click.ClickException(f"{name}: failed answers: {run}")
    replica_us, haproxy_us = 1e6 * np.subtract(after_s, before_s) / (run.requests_per_s * RUN_S)
    return {
        "requests_per_s": run.requests_per_s,
        "replica_us": float(replica_us),
        "haproxy_us": float(haproxy_us),
        "both_us": float(replica_us + haproxy_us),
    }


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
