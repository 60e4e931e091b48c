"""Compare autoscalers in the simulator: how well each keeps the SLA, and at what cost.

    python -m benchmarks.simulated.autoscaler [--quick] [--json] [--traces DIR] [--seeds N]
        [--jobs N] [--out FILE] [--plots DIR] [--plan]

The contenders:

- Sojourn with its defaults;
- Ray Serve's default policy, Knative's KPA, M/D/c sizing as in Faro, a proportional rule with a
  forecast as in MArk, and the peak of the last minute, each as published;
- Ray and Knative with the best settings of a grid search on the same trace;
- a static fleet with the least number of replicas that complies in every minute;
- two oracles that know the trace and the start times: one covers every second, the other runs the
  least constant number of replicas with which each minute complies.

All of them get the same arrivals, batching and routing. docs/autoscalers_compared.md explains the
columns.

DIR holds the traces that `TRACE_SOURCES` names. Missing ones are left out; without any, a synthetic
load is run. Every run is a line of JSON in FILE and is not repeated, so a long run can be stopped
and resumed. After a change of the code, use a new file.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from benchmarks.simulated.arena import cases
from benchmarks.simulated.arena.cases import Contender, Service, Trace
from benchmarks.simulated.arena.report import (
    GOAL_COST,
    GOAL_HELD,
    Row,
    best_tuned,
    beyond,
    draw_frontiers,
    rows,
)
from benchmarks.simulated.arena.runs import (
    Cell,
    Job,
    Record,
    Records,
    find_window_need,
    need_key,
    run,
)
from simulator.reporting.comparison import percent
from sojourn.output import print_json, print_table, say

TRACE_SOURCES = """traces: gzipped CSV with the header second,requests
  twitter_2021_08_days1-2.csv.gz  github.com/reconfigurable-ml-pipeline/web-service-datasets
  nasa_1995_day5.csv.gz           same source; the original is in the Internet Traffic Archive
  azure_llm_2023_code.csv.gz      github.com/Azure/AzurePublicDataset (CC-BY-4.0), counted by second
  azure_llm_2023_conv.csv.gz      same source; included in configs/traces"""

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
        mine = [row for row in self.rows() if row.cell == _cell_key(load) and row.label in grid]
        return grid[best_tuned(mine).label]

    def curves(self, load: Cell, found: Sequence[Row]) -> dict[str, list[Row]]:
        """Return the rows of each family along its knob."""
        here = [row for row in found if row.cell == _cell_key(load)]
        labels = {family: {c.label for c in self._curve(family)} for family in cases.FAMILIES}
        return {
            family: [row for row in here if row.label in labels[family] | {family}]
            for family in self._curve_families(load)
        }

    def _curve_families(self, load: Cell) -> Iterable[str]:
        return cases.FAMILIES if load.service.name == "slow" else cases.TUNED

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


def _cell_key(cell: Cell) -> tuple[str, str, int]:
    return cell.trace.name, cell.service.name, cell.start_time_s


def _load_name(load: Cell) -> str:
    return f"{load.trace.name}, {load.service.name}"


def _job_key(job: Job) -> str:
    return job.key


def _spread(value: float, least_most: tuple[float, float], form: Callable[[float], str]) -> str:
    low, high = map(form, least_most)
    return form(value) if low == high else f"{form(value)} [{low}, {high}]"


def _print_rows(found: Sequence[Row], tuned: Mapping[str, str], points: set[str]) -> None:
    """Print a table for each start time of a load, without the points of the curves."""
    names = {label: f"{family}, tuned" for family, label in tuned.items()}
    for cell in dict.fromkeys(row.cell for row in found):
        trace, service, start_time_s = cell
        shown = [
            row
            for row in found
            if row.cell == cell and (row.label in names or row.label not in points)
        ]
        print_table(
            ("", "in time", "held", "cost", "by window", "energy", "scalings/h"),
            (
                (
                    names.get(row.label, row.label),
                    percent(row.service_level),
                    _spread(row.held, row.held_range, percent),
                    _spread(row.over_oracle, row.over_oracle_range, lambda cost: f"{cost:.2f}"),
                    f"{row.over_window_oracle:.2f}",
                    f"{row.energy_over_oracle:.3f}",
                    f"{row.scalings_per_hour:.0f}",
                )
                for row in shown
            ),
            title=f"{trace}, {service} service, {start_time_s} s to start",
        )


@click.command()
@quick_option("Some hours of each trace and one start time; takes minutes.")
@click.option(
    "--traces",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the traces; without it, the script prints where to get them.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=None,
    help="Seeds where replicas take 60 s to start.  [default: 3, with --quick 1]",
)
@click.option(
    "--jobs", "workers", type=click.IntRange(1), default=1, show_default=True, help="Processes."
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File that keeps all runs."
)
@click.option(
    "--plots", type=click.Path(file_okay=False, path_type=Path), help="Folder for the plots."
)
@click.option("--plan", "plan_only", is_flag=True, help="Describe what would run, and stop.")
@json_option
def main(
    quick: bool,
    folder: Path | None,
    seeds: int | None,
    workers: int,
    out: Path | None,
    plots: Path | None,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Compare autoscalers in the simulator: how well each keeps the SLA, and at what cost."""
    traces = cases.QUICK_TRACES if quick else cases.TRACES
    present = [t for t in traces if folder and t.file and (folder / t.file).exists()]
    if not present:
        say(f"no trace found; running a synthetic load instead of these\n{TRACE_SOURCES}")
        present = [cases.QUICK_SYNTHETIC if quick else cases.SYNTHETIC]
    comparison = Comparison(
        present,
        cases.services(GOOGLENET_P4),
        folder,
        quick,
        seeds or (1 if quick else 3),
        workers,
        Records(out),
    )
    say(comparison.plan())
    if plan_only:
        return
    found = comparison.run()
    _report(comparison, found, quick, plots, as_json)


def _report(
    comparison: Comparison, found: Sequence[Row], quick: bool, plots: Path | None, as_json: bool
) -> None:
    by_load: dict[str, Any] = {}
    for load in comparison.loads:
        curves = comparison.curves(load, found)
        here = [row for row in found if row.cell == _cell_key(load)]
        fixed = [row for row in here if row.family in ("oracle", "window oracle", "static")]
        ours = curves.get("sojourn", [])
        others = [row for name, curve in curves.items() if name != "sojourn" for row in curve]
        by_load[_load_name(load)] = {
            "tuned": {name: comparison.tuned[load.load_key, name].label for name in cases.TUNED},
            "beyond_sojourn": [asdict(row) for row in beyond(others, ours)] if ours else None,
            "saved_against_static": _saved(here),
        }
        if ours and plots:
            plots.mkdir(parents=True, exist_ok=True)
            name = load.trace.name.replace(" ", "_")
            draw_frontiers(
                curves,
                fixed,
                f"{load.trace.name}, {load.service.name} service, "
                f"{load.start_time_s} s to start a replica",
                plots / f"autoscaler_frontier_{name}.png",
            )
    mine = [row for row in found if row.label == "sojourn"]
    goal = {
        "held": GOAL_HELD,
        "over_oracle": GOAL_COST,
        "reached": sum(row.reaches_goal for row in mine),
        "cells": len(mine),
    }
    if as_json:
        print_json({"rows": [asdict(row) for row in found], "loads": by_load, "goal": goal})
        return
    points = {
        contender.label for family in cases.FAMILIES for contender in cases.curve(family, quick)
    }
    for load in comparison.loads:
        summary = by_load[_load_name(load)]
        here = [row for row in found if row.cell[:2] == _cell_key(load)[:2]]
        _print_rows(here, summary["tuned"], points)
        for family, label in summary["tuned"].items():
            print(f"{family}, tuned: {label}")
        print(f"saved compared with static at peak: {100 * summary['saved_against_static']:.1f}%")
        for row in summary["beyond_sojourn"] or ():
            held, cost = percent(row["held"]), row["over_oracle"]
            print(f"beyond Sojourn: {row['label']}, {held} at {cost:.3f}")
        print()
    print(
        f"Sojourn holds {percent(GOAL_HELD)} at {GOAL_COST}x or less in {goal['reached']} "
        f"of {goal['cells']} cells."
    )


def _saved(here: Sequence[Row]) -> float:
    """Return the fraction of the static fleet's replica-hours that Sojourn saves."""
    cost = {row.label: row.over_oracle for row in here}
    return 1 - cost["sojourn"] / cost["static"]


if __name__ == "__main__":
    main()
