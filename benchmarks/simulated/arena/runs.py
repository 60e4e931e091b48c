"""The runs of `benchmarks.simulated.autoscaler`, one JSON line each so that work can be resumed."""

import json
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaler.settings import AutoscalerSettings
from benchmarks.simulated.arena.cases import Contender, FloatArray, Service, Trace, sla_rate_per_s
from deployments.routing import RETRIES
from simulator.autoscalers.fixed import FixedFleet
from simulator.autoscalers.oracle import (
    Clairvoyant,
    repeat_per_second,
    required_replicas_by_second,
    required_replicas_by_window,
)
from simulator.autoscalers.registry import AUTOSCALERS, ScalingProblem
from simulator.fleet import StartTime
from simulator.results import WINDOW_S
from simulator.scaling import ScalingPolicy
from simulator.scenario import Scenario
from simulator.simulation import simulate

BoolArray = NDArray[np.bool_]
Record = dict[str, Any]

#: Upper bound of every fleet, as a multiple of what the peak needs.
MAX_TIMES_PEAK = 3


@dataclass(frozen=True)
class Cell:
    """A part of a trace on a service, with a start time and a seed.

    Attributes
    ----------
    trace : Trace
    service : Service
    start_time_s : int
        How long a replica takes from its order until it serves.
    seed : int
        Seeds the arrivals within seconds and the balancer's choices.
    folder : Path or None
        Folder of the traces.
    """

    trace: Trace
    service: Service
    start_time_s: int
    seed: int
    folder: Path | None

    @property
    def load_key(self) -> str:
        """Name of the load, for records."""
        part = self.trace.slices[self.service.name]
        return (
            f"{self.trace.name}/{self.service.name}/"
            f"{part.begin_s}+{part.length_s} s, peak {part.peak}"
        )

    @property
    def key(self) -> str:
        """Name of the cell, for records."""
        return f"{self.load_key}/start {self.start_time_s} s/seed {self.seed}"

    @cached_property
    def offered(self) -> FloatArray:
        """Requests of each second, shape (seconds,)."""
        return self.trace.counts(self.service, self.folder)

    @property
    def need(self) -> NDArray[np.int64]:
        """Replicas whose rate within the SLA covers each second, shape (seconds,)."""
        return required_replicas_by_second(self.offered, sla_rate_per_s(self.service))

    @property
    def max_replicas(self) -> int:
        """Upper bound of the fleet."""
        return MAX_TIMES_PEAK * self.trace.slices[self.service.name].peak


@dataclass(frozen=True)
class Job:
    """One run: a contender in a cell.

    Attributes
    ----------
    cell : Cell
    contender : Contender
    window_need : tuple of int
        Least constant number of replicas with which each minute complies, for the window oracle
        and the static fleet.
    """

    cell: Cell
    contender: Contender
    window_need: tuple[int, ...]

    @property
    def key(self) -> str:
        """Name of the run, for records."""
        return f"{self.cell.key}/{self.contender.label}"


def oracle(cell: Cell) -> Clairvoyant:
    """Return the oracle that covers every second; all fleets begin with its replicas."""
    return Clairvoyant(cell.need, cell.start_time_s)


def make(job: Job) -> ScalingPolicy:
    """Build the autoscaler of a job."""
    cell, contender = job.cell, job.contender
    knob = contender.knob
    if contender.family == "window oracle":
        seconds = cell.offered.size
        return Clairvoyant(repeat_per_second(job.window_need, seconds), cell.start_time_s)
    if contender.family == "static":
        knob = max(job.window_need)
    problem = ScalingProblem(
        cell.service.profile,
        cell.service.objective,
        sla_rate_per_s(cell.service),
        cell.start_time_s,
        cell.offered,
        AutoscalerSettings(retries=RETRIES),
        max_replicas=cell.max_replicas,
    )
    return AUTOSCALERS[contender.family].make(problem, knob, **dict(contender.settings))


def scenario(cell: Cell, initial_replicas: int, start_time_s: float | None = None) -> Scenario:
    """Return the scenario of a cell, with another start time if one is given."""
    return Scenario(
        cell.service.profile,
        cell.service.objective,
        cell.offered,
        start_time=StartTime(cell.start_time_s if start_time_s is None else start_time_s),
        seed=cell.seed,
        replicas=initial_replicas,
        max_replicas=cell.max_replicas,
    )


def run(job: Job) -> Record:
    """Simulate a job and record what the report needs."""
    cell, policy = job.cell, make(job)
    begin_s = time.perf_counter()
    if isinstance(policy, FixedFleet):
        initial_replicas = policy.count
    else:
        knowing = policy if isinstance(policy, Clairvoyant) else oracle(cell)
        initial_replicas = knowing.initial_replicas
    done = simulate(scenario(cell, initial_replicas), policy)
    return {
        "key": job.key,
        "trace": cell.trace.name,
        "service": cell.service.name,
        "start_time_s": cell.start_time_s,
        "seed": cell.seed,
        "family": job.contender.family,
        "knob": job.contender.knob,
        "label": job.contender.label,
        "requests": float(done.offered.sum()),
        "service_level": done.service_level,
        "compliant": "".join("01"[int(good)] for good in done.compliant()),
        "replica_seconds": done.paid_replica_s,
        "planned_replica_seconds": getattr(policy, "replica_seconds", None),
        "energy_j": float(done.energy_j.sum()),
        "scalings_per_hour": done.scalings_per_hour,
        "wall_s": time.perf_counter() - begin_s,
    }


def find_window_need(cell: Cell) -> Record:
    """Find the least constant number of replicas with which each minute complies.

    Replicas start and stop instantly here, and changes cost nothing.
    """
    need = cell.need
    starts = np.arange(0, need.size, WINDOW_S)
    high = np.maximum.reduceat(need, starts) + 1
    mean_per_s = np.add.reduceat(cell.offered, starts) / WINDOW_S
    # A minute needs what carries its mean; 5% less allows for the queue it may leave at its end.
    low = np.maximum(1, np.floor(0.95 * mean_per_s / cell.service.profile.capacity_per_s))
    low = np.minimum(low.astype(np.int64), high)

    def complies(replicas: NDArray[np.int64]) -> BoolArray:
        schedule = Clairvoyant(repeat_per_second(replicas, need.size), 0)
        return simulate(scenario(cell, schedule.initial_replicas, 0), schedule).compliant()

    begin_s = time.perf_counter()
    found = required_replicas_by_window(complies, low, high)
    return {
        "key": need_key(cell),
        "window_need": found.tolist(),
        "wall_s": time.perf_counter() - begin_s,
    }


def need_key(cell: Cell) -> str:
    """Name the record of `find_window_need`, which depends on no start time."""
    return f"{cell.load_key}/need"


class Records:
    """The records of all finished runs, in an append-only file of JSON lines.

    Parameters
    ----------
    path : Path or None
        None keeps them in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.by_key: dict[str, Record] = {}
        for line in lines:
            record = json.loads(line)
            self.by_key[record["key"]] = record

    def add(self, record: Record) -> None:
        """Add a record, and write it to the file at once."""
        self.by_key[record["key"]] = record
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")
