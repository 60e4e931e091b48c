"""The runs of `benchmarks.simulated.autoscaler` in the order of their dependencies."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from benchmarks.simulated.arena import cases
from benchmarks.simulated.arena.cases import Contender, Service, Trace
from benchmarks.simulated.arena.report import Row, best_tuned, rows
from benchmarks.simulated.arena.runs import (
    Cell,
    Job,
    Record,
    Records,
    find_window_need,
    need_key,
    run,
)
from sojourn.output import say

T = TypeVar("T", Cell, Job)


class Comparison:
    """All runs of the comparison, in the order of their dependencies.

    Parameters
    ----------
    traces : sequence of Trace
    services : sequence of Service
    folder : Path or None
        Folder of the traces.
    quick : bool
    seeds : int
        Seeds at the start time at which knobs are varied; other start times get one.
    workers : int
        Processes that run side by side.
    records : Records
    """

    def __init__(
        self,
        traces: Sequence[Trace],
        services: Sequence[Service],
        folder: Path | None,
        quick: bool,
        seeds: int,
        workers: int,
        records: Records,
    ) -> None:
        self._quick, self._workers, self._records = quick, workers, records
        starts_s = (cases.CURVE_START_TIME_S,) if quick else cases.START_TIMES_S
        self.loads = [
            Cell(trace, service, cases.CURVE_START_TIME_S, 0, folder)
            for trace in traces
            for service in services
            if service.name in trace.slices
        ]
        self.cells = [
            Cell(load.trace, load.service, start_time_s, seed, folder)
            for load in self.loads
            for start_time_s in starts_s
            for seed in range(seeds if start_time_s == cases.CURVE_START_TIME_S else 1)
        ]
        self._used: dict[str, Job] = {}
        #: The best contender of each grid, by load and family, once the grids have run.
        self.tuned: dict[tuple[str, str], Contender] = {}

    def plan(self) -> str:
        """Describe how much there is to run, at most."""
        lines = ["trace, service: hours, replicas needed, million requests; runs"]
        total = 0.0
        for load in self.loads:
            cells = sum(cell.load_key == load.load_key for cell in self.cells)
            grid = [c for family in self._curve_families(load) for c in self._curve(family)]
            runs = cells * (len(cases.ORACLES) + len(cases.STOCK) + len(cases.TUNED)) + len(grid)
            millions = load.offered.sum() / 1e6
            total += millions * (runs + 6)  # finding the windows' needs takes about six runs
            need = load.need
            lines.append(
                f"  {load.trace.name}, {load.service.name}: {load.offered.size / 3600:.2g} h, "
                f"{need.min()}-{need.max()} (mean {need.mean():.1f}), {millions:.3g}; {runs}"
            )
        lines.append(f"  {total:,.0f} million requests in total")
        return "\n".join(lines)

    def run(self) -> list[Row]:
        """Run what has not been run yet, and sum up everything."""
        self._run_missing(find_window_need, self.loads, need_key, "replicas needed per minute")
        jobs = [
            self._job(cell, contender)
            for cell in self.cells
            for contender in (*cases.ORACLES, *cases.STOCK)
        ]
        for load in self.loads:
            for family in self._curve_families(load):
                jobs += [self._job(load, contender) for contender in self._curve(family)]
        self._run_missing(run, jobs, _job_key, "defaults, and along the knobs")
        # Choose all before creating any job: rows() expects a record of every job created.
        self.tuned = {
            (load.load_key, family): self._best(load, family)
            for load in self.loads
            for family in cases.TUNED
        }
        jobs = [
            self._job(cell, self.tuned[cell.load_key, family])
            for family in cases.TUNED
            for cell in self.cells
        ]
        self._run_missing(run, jobs, _job_key, "tuned")
        return self.rows()

    def rows(self) -> list[Row]:
        """Sum up all runs of this comparison."""
        return rows(self._records.by_key[key] for key in self._used)

    def _best(self, load: Cell, family: str) -> Contender:
        grid = {contender.label: contender for contender in self._curve(family)}
        mine = [row for row in self.rows() if row.cell == cell_key(load) and row.label in grid]
        return grid[best_tuned(mine).label]

    def curves(self, load: Cell, found: Sequence[Row]) -> dict[str, list[Row]]:
        """Return the rows of each family along its knob."""
        here = [row for row in found if row.cell == cell_key(load)]
        labels = {family: {c.label for c in self._curve(family)} for family in cases.CURVES}
        return {
            family: [row for row in here if row.label in labels[family] | {family}]
            for family in self._curve_families(load)
        }

    def _curve_families(self, load: Cell) -> Iterable[str]:
        return cases.CURVES if load.service.name == "slow" else cases.TUNED

    def _curve(self, family: str) -> tuple[Contender, ...]:
        return cases.curve(family, self._quick)

    def _job(self, cell: Cell, contender: Contender) -> Job:
        need = tuple(self._records.by_key[need_key(cell)]["window_need"])
        job = Job(cell, contender, need)
        self._used[job.key] = job
        return job

    def _run_missing(
        self,
        execute: Callable[[T], Record],
        tasks: Sequence[T],
        key_of: Callable[[T], str],
        title: str,
    ) -> None:
        missing = {key_of(task): task for task in tasks if key_of(task) not in self._records.by_key}
        say(f"{title}: {len(missing)} of {len(tasks)} to run")
        begin_s = time.perf_counter()
        for number, record in enumerate(self._results(execute, list(missing.values())), start=1):
            self._records.add(record)
            passed_s = time.perf_counter() - begin_s
            say(
                f"  {number}/{len(missing)}  {record['wall_s']:.1f} s  {record['key']}"
                f"  ({passed_s / number * (len(missing) - number) / 60:.0f} min left)"
            )

    def _results(self, execute: Callable[[T], Record], tasks: Sequence[T]) -> Iterable[Record]:
        if self._workers == 1:
            yield from map(execute, tasks)
            return
        with ProcessPoolExecutor(self._workers) as pool:
            for future in as_completed([pool.submit(execute, task) for task in tasks]):
                yield future.result()


def cell_key(cell: Cell) -> tuple[str, str, int]:
    """Return trace, service and start time: the cell that rows of all seeds share."""
    return cell.trace.name, cell.service.name, cell.start_time_s


def _job_key(job: Job) -> str:
    return job.key
