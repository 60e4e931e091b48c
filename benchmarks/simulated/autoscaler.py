"""Tune autoscalers on one day of a trace and judge them on another: minutes held, and their cost.

    python -m benchmarks.simulated.autoscaler [--quick] [--json] [--traces DIR] [--only WORD]
        [--jobs N] [--plot FILE]

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from autoscaler.simulator.arena import GOAL, Score, Tuned, frontier, tune_and_judge
from benchmarks.arguments import json_option, plot_option, print_result, quick_option
from benchmarks.inputs import AZURE_CONVERSATION_TRACE
from benchmarks.simulated.traces import TRACES
from sojourn.output import say

START_TIMES_S = (60, 10, 300)
_MARKERS = "osD^vP*X<>"
_COST_TICKS = (0.5, 0.7, 1, 1.2, 1.5, 2, 3, 5, 10, 20)
_MISSED_TICKS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


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
@plot_option
@json_option
def main(
    quick: bool, folder: Path, only: str, workers: int, plot_file: Path | None, as_json: bool
) -> None:
    """Tune autoscalers on one day of a trace and judge them on another; plot the first case."""
    rows: list[dict[str, Any]] = []
    begin_s = time.perf_counter()
    for start_time_s in START_TIMES_S[: 1 if quick else None]:
        for trace in TRACES:
            if not trace.is_in(folder) or only not in f"{trace.name}, {start_time_s} s":
                continue
            tune_on, judge_on = trace.loads(start_time_s, folder, 4 if quick else 24)
            families = tune_and_judge(tune_on, judge_on, workers=workers)
            say(f"{judge_on.name}: {time.perf_counter() - begin_s:.0f} s")
            if plot_file is not None and not rows:
                draw(plot_file, judge_on.name, families)
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


def draw(path: Path, load: str, families: Sequence[Tuned]) -> None:
    """Draw the minutes that each family missed over its cost; rings mark the settings chosen."""
    figure = Figure(figsize=(9, 5), layout="constrained", dpi=110)
    axes = figure.subplots()
    scores = [score for tuned in families for score in tuned.judged]
    least = min((1 - score.held for score in scores if score.held < 1), default=0.01) / 2

    def point(score: Score) -> tuple[float, float]:
        return score.over_oracle, max(1 - score.held, least)

    for number, tuned in enumerate(families):
        color, marker = f"C{number % 10}", _MARKERS[number % len(_MARKERS)]
        curve = [point(score) for score in frontier(tuned.judged)]
        width = 2.4 if tuned.family == "sojourn" else 1.1
        axes.plot(*zip(*curve, strict=True), marker, ls="-", color=color, lw=width, ms=4)
        chosen = point(tuned.chosen)
        axes.plot(*chosen, marker, color=color, ms=9, mfc="none", label=tuned.family)
    axes.axhline(1 - GOAL, color="#777777", lw=0.9, ls=":")
    bound = scores[0].over_oracle / scores[0].over_bound
    axes.axvline(bound, color="#777777", lw=1.1, label="bound")
    axes.set(xscale="log", yscale="log", ylim=(1.1, least / 1.3))
    axes.set_xticks(_COST_TICKS, [f"{tick:g}" for tick in _COST_TICKS])
    high = 1.1 * max(score.over_oracle for score in scores)
    axes.set_xlim(0.95 * bound, high)
    shares = [share for share in _MISSED_TICKS if share > 1.5 * least]
    axes.set_yticks([*shares, least], [*(f"{100 * share:g}%" for share in shares), "none"])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.set(xlabel="replica-hours, times the oracle's", ylabel="minutes missed")
    axes.set_title(load)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
