"""Overload the fronts of one and of two replicas behind HAProxy, by an open loop.

    python -m benchmarks.live.overloaded_fronts [--quick] [--json]

Each replica serves a tiny MLP under 99% within 100 ms, without Ray but behind Ray's HAProxy with
our settings. The kernel holds it to a part of a core, so that its event loop is the bottleneck, and
neither HAProxy nor the client is; its policy is one of weights, which is solved fast. The rate
offered rises; then up to twice the most that was answered in time is offered. Told apart are
the answers in time, and what an answer in time costs: CPU time of the replicas per answer, and
tries per request. It needs root.
"""

import csv
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
import psutil

from benchmarks.arguments import json_option, quick_option
from benchmarks.live.bare_replicas import BareReplicas, bare_replicas
from benchmarks.peers.light_loop import light_open_loop
from benchmarks.peers.models import HOSTED
from benchmarks.peers.protocols import OpenInference, Workload, example_rows
from loadtests.schedule import Step, poisson_schedule
from sojourn.output import print_json, say

MODEL = "mlp"
REPLICAS = (1, 2)
CORES, PERIOD_MS = 0.25, 10
RESPONSE_TIME_MS = 100.0
#: The first rate offered, per replica, by what it rises, and how often.
FIRST_PER_S, STEP = 1200.0, 1.2
STEPS = 5
WARM_UP_S = 15.0
OVERLOADS = (1.5, 2.0)


@dataclass(frozen=True)
class Row:
    """What clients saw at one rate.

    Attributes
    ----------
    replicas : int
    load : float
        The rate offered, relative to the most that was answered in time per second.
    offered_per_s, in_time_per_s : float
    refused_share, late_share : float
        Of the requests; a late one was answered, but not in time.
    tries : float
        How often a request reached a replica.
    cpu_us : float
        CPU time of the replicas per answer in time.
    balancer_cpu_us : float
        CPU time of HAProxy per request.
    p50_ms, p99_ms : float
        Of the answers.
    """

    replicas: int
    load: float
    offered_per_s: float
    in_time_per_s: float
    refused_share: float
    late_share: float
    tries: float
    cpu_us: float
    balancer_cpu_us: float
    p50_ms: float
    p99_ms: float


def cpu_s(running: BareReplicas) -> tuple[float, float]:
    """Return the CPU time of the replicas and of HAProxy so far."""
    processes = [psutil.Process(pid) for pid in (*running.replicas.values(), running.balancer)]
    used_s = [times.user + times.system for times in (one.cpu_times() for one in processes)]
    return sum(used_s[:-1]), used_s[-1]


def tries_of(running: BareReplicas) -> int:
    """Return how many requests HAProxy has sent to the replicas."""
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(str(running.admin))
        admin.sendall(b"show stat -1 4 -1\n")
        table = b"".join(iter(lambda: admin.recv(1 << 16), b"")).decode()
    rows = csv.DictReader(table.removeprefix("# ").splitlines())
    return sum(int(row["stot"]) for row in rows if row["svname"])


@dataclass(frozen=True)
class Sample:
    """What was used up to a time."""

    time_s: float
    tries: int
    replicas_s: float
    balancer_s: float


def sample_until(running: BareReplicas, ended: threading.Event) -> list[Sample]:
    """Look at the service ten times a second."""
    samples = []
    while not ended.wait(0.1):
        samples.append(Sample(time.monotonic(), tries_of(running), *cpu_s(running)))
    return samples


def offer(
    running: BareReplicas, workload: Workload, rates_per_s: Sequence[float], run_s: float
) -> list[Row]:
    """Offer one rate after the other, each after a pause as long as the SLA's response time."""
    pause_s = 1e-3 * RESPONSE_TIME_MS
    steps = [one for rate in rates_per_s for one in (Step(run_s, rate), Step(pause_s, 0.0))]
    arrivals_s = poisson_schedule(steps, seed=1).arrivals_s
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(sample_until, running, ended)
        run = light_open_loop(workload, arrivals_s, running.port)
        ended.set()
        samples = sampling.result()
    # The client starts some time after it is called: with the first request.
    began = next(place for place, one in enumerate(samples) if one.tries > samples[0].tries) - 1
    seen = samples[began:]
    since_s = [one.time_s - seen[0].time_s for one in seen]

    def used(name: str, begin_s: float) -> float:
        values = [getattr(one, name) for one in seen]
        at = np.interp([begin_s, begin_s + run_s + pause_s], since_s, values)
        return float(at[1] - at[0])

    rows = []
    for number, rate_per_s in enumerate(rates_per_s):
        begin_s = number * (run_s + pause_s)
        mine = (arrivals_s >= begin_s) & (arrivals_s < begin_s + run_s)
        answered, count = run.answered & mine, int(mine.sum())
        times_ms = run.service_ms[answered]
        in_time = int(np.count_nonzero(times_ms <= RESPONSE_TIME_MS))
        p50_ms, p99_ms = np.percentile(times_ms, (50, 99)).tolist() if times_ms.size else (0, 0)
        rows.append(
            Row(
                replicas=len(running.replicas),
                load=np.nan,
                offered_per_s=rate_per_s,
                in_time_per_s=in_time / run_s,
                refused_share=float(np.isin(run.outcome[mine], (429, 503, 504)).mean()),
                late_share=float(answered.sum() - in_time) / count,
                tries=used("tries", begin_s) / count,
                cpu_us=1e6 * used("replicas_s", begin_s) / max(1, in_time),
                balancer_cpu_us=1e6 * used("balancer_s", begin_s) / count,
                p50_ms=p50_ms,
                p99_ms=p99_ms,
            )
        )
        say(f"overloaded_fronts: {rows[-1]}")
    return rows


def overload(count: int, run_s: float) -> list[Row]:
    """Find the most that is answered in time, and offer more."""
    workload = Workload(MODEL, OpenInference(), example_rows(MODEL, 32))
    model = (MODEL, HOSTED[MODEL].import_path, "--objective", "weights")
    with bare_replicas(count, *model, cores=CORES, period_ms=PERIOD_MS) as running:
        offer(running, workload, [0.8 * count * FIRST_PER_S], WARM_UP_S)
        rates_per_s = count * FIRST_PER_S * STEP ** np.arange(STEPS)
        rows = offer(running, workload, rates_per_s.tolist(), run_s)
        most_per_s = max(row.in_time_per_s for row in rows)
        rows += offer(running, workload, [factor * most_per_s for factor in OVERLOADS], run_s)
    return [Row(**{**asdict(row), "load": row.offered_per_s / most_per_s}) for row in rows]


@click.command()
@quick_option("Offer each rate for 3 s instead of 10 s.")
@json_option
@click.option("--replicas", type=click.Choice([str(one) for one in REPLICAS]), help="Only so many.")
def main(quick: bool, as_json: bool, replicas: str | None) -> None:
    """Overload the fronts of replicas behind HAProxy."""
    counts = REPLICAS if replicas is None else (int(replicas),)
    rows = [row for count in counts for row in overload(count, 3.0 if quick else 10.0)]
    if as_json:
        print_json({"rows": [asdict(row) for row in rows]})
        return
    columns: dict[str, tuple[str, Any]] = {
        "replicas": ("replicas", "d"),
        "load": ("load", ".2f"),
        "offered/s": ("offered_per_s", ".0f"),
        "in time/s": ("in_time_per_s", ".0f"),
        "refused": ("refused_share", ".1%"),
        "late": ("late_share", ".1%"),
        "tries": ("tries", ".2f"),
        "CPU µs": ("cpu_us", ".0f"),
        "HAProxy": ("balancer_cpu_us", ".0f"),
        "p50 ms": ("p50_ms", ".1f"),
        "p99 ms": ("p99_ms", ".1f"),
    }
    print("".join(f"{name:>10}" for name in columns))
    for row in rows:
        print("".join(f"{getattr(row, key):>10{form}}" for key, form in columns.values()))


if __name__ == "__main__":
    main()
