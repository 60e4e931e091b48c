"""Tune autoscalers on one day of a trace and judge them on another: minutes held, and their cost.

    python -m benchmarks.simulated.autoscaler [--quick] [--json] [--traces DIR] [--only WORD]
        [--jobs N] [--in-hindsight]

Each family of `autoscaler.simulator.autoscalers.registry`, Sojourn included, is tuned over its own
grid on one part of each trace. The cheapest setting that holds 99% of the minutes, and its
neighbors on the frontier, are judged on a part that nobody was tuned on. Start times are lognormal
with medians of 60, 10 and 300 s, a fiftieth of the starts fail, and nobody but the oracle knows
either. Traces are superposed: their rate smoothed, Poisson arrivals.

DIR holds these traces, gzipped CSV with the header second,requests; missing ones are left out:

- twitter_2021_08_days1-2.csv.gz, nasa_1995_day5.csv.gz, nasa_1995_days12-18.csv.gz, from
  github.com/reconfigurable-ml-pipeline/web-service-datasets
- azure_llm_2023_code.csv.gz and azure_llm_2023_conv.csv.gz (in configs/traces), counted by second
  from github.com/Azure/AzurePublicDataset (CC-BY-4.0)
"""

import time
from pathlib import Path
from typing import Any

import click

from autoscaler.simulator.arena import Score, best_in_hindsight, tune_and_judge
from benchmarks.arguments import json_option, print_result, quick_option
from benchmarks.inputs import AZURE_CONVERSATION_TRACE
from benchmarks.simulated.traces import TRACES
from sojourn.output import say

START_TIMES_S = (60, 10, 300)


@click.command()
@quick_option("Four hours of each trace at one start time; takes minutes.")
@click.option(
    "--traces",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=AZURE_CONVERSATION_TRACE.parent,
    help="Folder of the traces.  [default: configs/traces]",
)
@click.option("--only", default="", help="Only cases whose name contains this, such as `60 s`.")
@click.option(
    "--jobs", "workers", type=click.IntRange(1), default=1, show_default=True, help="Processes."
)
@click.option(
    "--in-hindsight",
    is_flag=True,
    help="Instead, compare Sojourn and simple rules, each with its best setting on the judged part "
    "itself.",
)
@json_option
def main(
    quick: bool, folder: Path, only: str, workers: int, in_hindsight: bool, as_json: bool
) -> None:
    """Tune autoscalers on one day of a trace and judge them on another."""
    rows: list[dict[str, Any]] = []
    begin_s = time.perf_counter()
    for start_time_s in START_TIMES_S[: 1 if quick else None]:
        for trace in TRACES:
            if not trace.is_in(folder) or only not in f"{trace.name}, {start_time_s} s":
                continue
            tune_on, judge_on = trace.loads(start_time_s, folder, 4 if quick else 24)
            if in_hindsight:
                scores = best_in_hindsight(judge_on, workers)
                rows += [row_of(judge_on.name, one.choice.entry.name, one) for one in scores]
                continue
            families = tune_and_judge(tune_on, judge_on, workers=workers)
            say(f"{judge_on.name}: {time.perf_counter() - begin_s:.0f} s")
            rows += [
                row_of(judge_on.name, name, score)
                for tuned in families
                for name, score in (
                    (tuned.family, tuned.chosen),
                    (f"{tuned.family}, as published", tuned.published),
                )
            ]
    if not rows:
        raise click.UsageError(f"{folder}: no trace of such a case found; see the docstring")
    print_result({"judged": rows}, as_json)


def row_of(load: str, family: str, score: Score) -> dict[str, Any]:
    return {
        "load": load,
        "family": family,
        "setting": score.choice.label,
        "held": score.held,
        "held_95_percent_interval": score.interval,
        "over_oracle": score.over_oracle,
        "over_bound": score.over_bound,
        "energy_over_oracle": score.energy_over_oracle,
        "scalings_per_hour": score.scalings_per_hour,
    }


if __name__ == "__main__":
    main()
