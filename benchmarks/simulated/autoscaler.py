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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from benchmarks.simulated.arena import cases
from benchmarks.simulated.arena.comparison import Comparison, cell_key
from benchmarks.simulated.arena.report import GOAL_COST, GOAL_HELD, Row, beyond, draw_frontiers
from benchmarks.simulated.arena.runs import Cell, Records
from simulator.reporting.comparison import percent
from sojourn.output import print_json, print_table, say

TRACE_SOURCES = """traces: gzipped CSV with the header second,requests
  twitter_2021_08_days1-2.csv.gz  github.com/reconfigurable-ml-pipeline/web-service-datasets
  nasa_1995_day5.csv.gz           same source; the original is in the Internet Traffic Archive
  azure_llm_2023_code.csv.gz      github.com/Azure/AzurePublicDataset (CC-BY-4.0), counted by second
  azure_llm_2023_conv.csv.gz      same source; included in configs/traces"""


def _load_name(load: Cell) -> str:
    return f"{load.trace.name}, {load.service.name}"


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
        here = [row for row in found if row.cell == cell_key(load)]
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
        contender.label for family in cases.CURVES for contender in cases.curve(family, quick)
    }
    for load in comparison.loads:
        summary = by_load[_load_name(load)]
        here = [row for row in found if row.cell[:2] == cell_key(load)[:2]]
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
