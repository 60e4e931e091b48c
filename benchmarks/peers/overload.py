"""Overload: 1.5 times the device's capacity, impatient clients, and items that fail their batch.

Every request carries its number. The device echoes the numbers and logs each batch, which shows how
much of its time went into answers that came too late or had nobody waiting for them.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.goodput import PROFILE, RESPONSE_TIME_MS, in_time
from benchmarks.peers.machine import machine_use
from benchmarks.peers.open_loop import PATIENCE_S, Run, open_loop
from benchmarks.peers.protocols import Dialect, Workload
from loadtests.records import Outcome
from loadtests.schedule import Step, poisson_schedule

LOAD, IMPATIENT_FRACTION, POISON_FRACTION = 1.5, 0.2, 0.01
#: Statuses that mean "not now": busy, crowded out, or given up because it would come too late.
REFUSALS = (429, 503, 504)
#: How long before the device starts a batch the server may have put it together.
HANDOVER_S = 0.005


@dataclass(frozen=True)
class Overload:
    """How a server handled the overload.

    Attributes
    ----------
    offered_per_s : float
        Requests sent.
    goodput_per_s : float
        Right answers in time.
    capacity_fraction : float
        Goodput over the device's throughput in full batches.
    refused_fraction : float
        Fraction of the requests answered 429, 503 or 504.
    late_fraction : float
        Fraction answered rightly, but not in time.
    wasted_device_fraction : float or None
        Fraction of the device's busy time spent on requests that got no answer in time; None if
        nothing was computed.
    for_the_gone_fraction : float or None
        Fraction of the device's busy time spent on requests whose clients had left before the
        batch began.
    wrong : int
        Requests answered 200 with anything but the right answer; for poison, any 200 is wrong.
    missing : int
        Patient clients that got no answer within 10 s.
    failed_by_others : int
        Sound requests answered with another 4xx or 5xx, because poison shared their batch.
    others_cores : float
        Cores that other processes kept busy meanwhile.
    """

    offered_per_s: float
    goodput_per_s: float
    capacity_fraction: float
    refused_fraction: float
    late_fraction: float
    wasted_device_fraction: float | None
    for_the_gone_fraction: float | None
    wrong: int
    missing: int
    failed_by_others: int
    others_cores: float


def overload(dialect: Dialect, batches: Path, run_s: float) -> Overload:
    """Overload the running server.

    Parameters
    ----------
    dialect : Dialect
        The server's JSON format.
    batches : Path
        File in which the device logs its batches.
    run_s : float
        How long requests are sent.
    """
    rate_per_s = LOAD * PROFILE.capacity_per_s
    arrivals_s = poisson_schedule([Step(run_s, rate_per_s)], seed=3).arrivals_s
    count = arrivals_s.size
    random = np.random.default_rng(3)
    poison = random.uniform(size=count) < POISON_FRACTION
    impatient = random.uniform(size=count) < IMPATIENT_FRACTION
    short_s = random.uniform(0, 1e-3 * RESPONSE_TIME_MS, count)
    patience_s = np.where(impatient, short_s, PATIENCE_S)
    numbers = np.arange(1, count + 1, dtype=np.float32)
    values = np.where(poison, -numbers, numbers)[:, np.newaxis]
    workload = Workload("emulated", dialect, {"input": values})
    with machine_use() as used:
        run = open_loop(workload, arrivals_s, patience_s)
    return _report(run, poison, impatient, run_s, batches, used.others_cores)


def _report(
    run: Run,
    poison: NDArray[np.bool_],
    impatient: NDArray[np.bool_],
    run_s: float,
    batches: Path,
    others_cores: float,
) -> Overload:
    outcome, count = run.records.outcome, run.records.outcome.size
    # The only right answer to poison is an error.
    outcome[poison & (outcome == Outcome.OK)] = Outcome.WRONG
    good = in_time(run)
    refused = np.isin(outcome, REFUSALS)
    unanswered = np.isin(outcome, (Outcome.UNANSWERED, Outcome.TIMEOUT, Outcome.CONNECTION))
    wasted, for_the_gone = _device_time(run, good, batches)
    return Overload(
        offered_per_s=count / run_s,
        goodput_per_s=float(good.sum()) / run_s,
        capacity_fraction=float(good.sum()) / run_s / PROFILE.capacity_per_s,
        refused_fraction=float(refused.mean()),
        late_fraction=float(((outcome == Outcome.OK) & ~good).mean()),
        wasted_device_fraction=wasted,
        for_the_gone_fraction=for_the_gone,
        wrong=int((outcome == Outcome.WRONG).sum()),
        missing=int((unanswered & ~impatient).sum()),
        failed_by_others=int(((outcome >= 400) & ~refused & ~poison).sum()),
        others_cores=others_cores,
    )


def _device_time(
    run: Run, good: NDArray[np.bool_], batches: Path
) -> tuple[float | None, float | None]:
    """Split each batch's time evenly among its requests, and sum up what was wasted.

    Returns the fraction spent on requests without an answer in time, and the fraction spent on
    requests whose clients had left before the batch began.
    """
    spent_s = wasted_s = gone_s = 0.0
    left_s = np.where(
        run.records.outcome == Outcome.TIMEOUT, run.records.finished_s + run.start_s, np.inf
    )
    for line in batches.read_text().splitlines():
        batch = json.loads(line)
        each_s = (batch["ended_s"] - batch["started_s"]) / len(batch["values"])
        for value in batch["values"]:
            if batch["started_s"] < run.start_s or value < 1:
                continue
            number = round(value) - 1
            spent_s += each_s
            wasted_s += 0.0 if good[number] else each_s
            gone_s += each_s if left_s[number] < batch["started_s"] - HANDOVER_S else 0.0
    return (wasted_s / spent_s, gone_s / spent_s) if spent_s else (None, None)
