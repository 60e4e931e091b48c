"""Measure what it costs to hand batches to the device thread instead of running them on the loop.

    python -m benchmarks.live.handover [--quick] [--json] [--busy]

A closed loop of requests goes through the real batcher on a uvloop event loop, without sockets: for
each answer the loop spends 60 µs of Python, as the HTTP side does for a request, and submits the
next one. The batches run on the loop's own thread, or on the device thread under several switch
intervals of the interpreter. Reports requests per second, CPU time per request of all threads, and
how long batches took live: medians of rounds in which the ways alternate. ``alone`` is the model
without anything else. ``--busy`` has another process burn a core. Takes half a minute.
"""

import asyncio
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

import click
import numpy as np
import uvloop

from benchmarks.arguments import json_option, quick_option
from benchmarks.peers.models import HOSTED, MAX_BATCH_SIZE
from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.batch_record import BatchRecord
from deployments.batcher.core import BatcherCore
from deployments.batcher.limits import Limits
from deployments.batcher.placement import BatchPlacement
from deployments.batcher.submission import Outcome
from deployments.models.base import Model
from deployments.threads import limit_threads
from policy.batching_policy import BatchingPolicy
from policy.profile import Profile
from policy.table import PolicyTable
from sojourn.output import print_json, print_table

MODELS = ("mlp", "digits")
IN_FLIGHT = (1, 8, 64)
#: Python that the loop runs per request, in seconds: about what parsing and answering one takes.
FRONT_S = 60e-6
INTERVALS_MS = (5.0, 0.5, 0.1)
ROUNDS, DURATION_S = 3, 0.25


@dataclass(frozen=True)
class Row:
    """One way to run a model's batches.

    Attributes
    ----------
    model : str
    in_flight : int
        Requests that wait or are answered at any time.
    way : str
        ``loop``, or ``thread`` with its switch interval in ms.
    requests_per_s, cpu_us : float
        Throughput, and CPU time per request of the whole process, the front's included.
    batch_size : float
        Mean.
    batch_ms : float
        Median time of a batch, as the replica sees it.
    alone_ms : float
        Median time of a batch of that size when nothing else runs.
    """

    model: str
    in_flight: int
    way: str
    requests_per_s: float
    cpu_us: float
    batch_size: float
    batch_ms: float
    alone_ms: float


def work(turns: int) -> None:
    """Run Python, without releasing the interpreter's lock."""
    for _ in range(turns):
        pass


def turns_for(duration_s: float) -> int:
    """Return for how many turns `work` takes a CPU time of `duration_s`."""
    sample = 1_000_000
    begun_s = time.thread_time()
    work(sample)
    return round(sample * duration_s / (time.thread_time() - begun_s))


async def run(
    model: Model, in_flight: int, turns: int, on_loop: bool, duration_s: float
) -> list[BatchRecord]:
    """Keep `in_flight` requests going for `duration_s`, and return the batches."""
    latency_ms = [1.0] * MAX_BATCH_SIZE
    profile = Profile("model", "cpu", np.array(latency_ms))
    policy = BatchingPolicy.from_control_limit(1, MAX_BATCH_SIZE)
    table = PolicyTable((profile.capacity_per_s,), (policy, policy), "")
    core = BatcherCore(table, Limits(math.inf, 10**6, latency_ms))
    placement = BatchPlacement()
    if on_loop:
        placement.use(latency_ms, 1e6, time.monotonic())
    records: list[BatchRecord] = []
    batcher = Batcher(model, core, records.append, placement, partial(limit_threads, 1))
    inputs = model.example(1)
    end_s = time.monotonic() + duration_s

    unanswered = in_flight
    all_answered = asyncio.Event()

    def submit(outcome: Outcome | None = None) -> None:
        nonlocal unanswered
        work(turns)
        if time.monotonic() < end_s:
            batcher.submit_nowait(inputs, 1, time.monotonic(), submit)
        else:
            unanswered -= 1
            if not unanswered:
                all_answered.set()

    for _ in range(in_flight):
        submit()
    await all_answered.wait()
    batcher.close()
    return records


def measure(
    model: Model, name: str, in_flight: int, turns: int, way: str, duration_s: float
) -> Row:
    """Measure one way for `duration_s`."""
    before_s = sys.getswitchinterval()
    if way != "loop":
        sys.setswitchinterval(1e-3 * float(way.split()[1]))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(model, in_flight, turns, way == "loop", 0.05))
            begun_s, begun_cpu_s = time.monotonic(), time.process_time()
            records = runner.run(run(model, in_flight, turns, way == "loop", duration_s))
            cpu_s, wall_s = time.process_time() - begun_cpu_s, time.monotonic() - begun_s
    finally:
        sys.setswitchinterval(before_s)
    requests = sum(record.size for record in records)
    mean_size = requests / len(records)
    batch = model.example(round(mean_size))
    alone_s = []
    for _ in range(20):
        begun_s = time.perf_counter()
        model.forward(batch)
        alone_s.append(time.perf_counter() - begun_s)
    return Row(
        name,
        in_flight,
        way,
        requests / wall_s,
        1e6 * cpu_s / requests,
        mean_size,
        1e3 * float(np.median([record.duration_s for record in records])),
        1e3 * float(np.median(alone_s)),
    )


def median_of(rows: Sequence[Row]) -> Row:
    """Return the medians of several rounds."""

    def median(name: str) -> float:
        return float(np.median([getattr(row, name) for row in rows]))

    return replace(
        rows[0],
        requests_per_s=median("requests_per_s"),
        cpu_us=median("cpu_us"),
        batch_size=median("batch_size"),
        batch_ms=median("batch_ms"),
        alone_ms=median("alone_ms"),
    )


@contextmanager
def burning(busy: bool) -> Iterator[None]:
    """Have another process burn a core meanwhile, if `busy`."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@click.command()
@quick_option("One round instead of three.")
@click.option("--busy", is_flag=True, help="Have another process burn a core.")
@json_option
def main(quick: bool, busy: bool, as_json: bool) -> None:
    """Compare batches on the event loop with batches on the device thread."""
    limit_threads(1)
    ways = ["loop", *(f"thread {interval_ms:g}" for interval_ms in INTERVALS_MS)]
    turns = turns_for(FRONT_S)
    rows = []
    with burning(busy):
        for name in MODELS:
            model = HOSTED[name].load()
            for in_flight in IN_FLIGHT:
                rounds = [
                    [measure(model, name, in_flight, turns, way, DURATION_S) for way in ways]
                    for _ in range(1 if quick else ROUNDS)
                ]
                rows += [median_of(of_one_way) for of_one_way in zip(*rounds, strict=True)]
    if as_json:
        print_json({"busy": busy, "front_us": 1e6 * FRONT_S, "rows": [asdict(row) for row in rows]})
        return
    print_table(
        ("model", "in flight", "way", "requests/s", "CPU µs", "batch", "batch ms", "alone ms"),
        [
            (
                row.model,
                str(row.in_flight),
                row.way,
                f"{row.requests_per_s:,.0f}",
                f"{row.cpu_us:.0f}",
                f"{row.batch_size:.1f}",
                f"{row.batch_ms:.3f}",
                f"{row.alone_ms:.3f}",
            )
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
