"""Tune autoscalers on one day of a trace and judge them on others: minutes held, and their cost.

    python -m benchmarks.simulated.autoscaler [--quick] [--json] [--traces DIR] [--seeds N]
        [--judges N] [--only WORD] [--jobs N] [--out FILE] [--page FILE] [--plots DIR]

Each family of `autoscaler.simulator.autoscalers.registry`, Sojourn included, is tuned over its own
grid on one
part of each trace. The cheapest setting that holds 99% of the minutes, and its neighbors on the
frontier, are judged on parts that nobody was tuned on. Start times are lognormal, a fiftieth of the
starts fail, and nobody but the oracle knows either. Traces are superposed (their rate smoothed,
Poisson arrivals) at start times of 60, 10 and 300 s, and as they are at 60 s.
docs/autoscalers_compared.md explains the columns.

DIR holds the traces that `TRACE_SOURCES` names. Missing ones are left out; without any, a synthetic
load is run. Every run is a line of JSON in FILE and is not repeated, so a long run can be stopped
and resumed. After a change of the code, use a new file. The page is written after every case, and
names those that are missing.
"""

import time
from pathlib import Path
from typing import Any

import click

from autoscaler.simulator.arena import Score
from autoscaler.simulator.reporting.tournament import line
from autoscaler.simulator.tuning import Tournament, Tuner
from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from benchmarks.simulated.arena import cases, page
from benchmarks.simulated.arena.records import Records
from sojourn.output import print_json, print_table, say

TRACE_SOURCES = """traces: gzipped CSV with the header second,requests
  twitter_2021_08_days1-2.csv.gz  github.com/reconfigurable-ml-pipeline/web-service-datasets
  twitter_2021_08_days3-9.csv.gz  same source
  nasa_1995_day5.csv.gz           same source; the original is in the Internet Traffic Archive
  nasa_1995_days12-18.csv.gz      same source
  azure_llm_2023_code.csv.gz      github.com/Azure/AzurePublicDataset (CC-BY-4.0), counted by second
  azure_llm_2023_conv.csv.gz      same source; included in configs/traces"""


def _present(trace: cases.Trace, folder: Path | None) -> bool:
    files = {part.file for part in (trace.tune_on, *trace.judge_on)}
    return folder is not None and all((folder / file).exists() for file in files)


def _cases(
    quick: bool, folder: Path | None, seeds: int, judges: int, only: str
) -> list[cases.Case]:
    traces = [trace for trace in cases.TRACES if _present(trace, folder)]
    if not traces:
        say(f"no trace found; running a synthetic load instead of these\n{TRACE_SOURCES}")
        traces = [cases.SYNTHETIC]
    if quick:
        traces = [trace.quick() for trace in traces]
    starts_s = (cases.RAW_START_TIME_S,) if quick else cases.START_TIMES_S
    kinds = [(True, start_s) for start_s in starts_s] + [(False, cases.RAW_START_TIME_S)]
    found = [
        cases.Case(cases.Trace(t.name, t.tune_on, t.judge_on[:judges], t.peak), kind, start_s, seed)
        for seed in range(seeds)
        for kind, start_s in kinds
        for t in traces
    ]
    return [case for case in found if only in case.name]


@click.command()
@quick_option("Four hours of each trace at one start time; takes minutes.")
@click.option(
    "--traces",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the traces; without it, the script prints where to get them.",
)
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--judges",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Days to judge on; there are at most two of each trace.",
)
@click.option("--only", default="", help="Only cases whose name contains this, such as `60 s`.")
@click.option(
    "--jobs", "workers", type=click.IntRange(1), default=1, show_default=True, help="Processes."
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File that keeps all runs."
)
@click.option(
    "--page",
    "page_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Page whose results are replaced, as docs/autoscalers_compared.md.",
)
@click.option(
    "--plots", type=click.Path(file_okay=False, path_type=Path), help="Folder for the plots."
)
@json_option
def main(
    quick: bool,
    folder: Path | None,
    seeds: int,
    judges: int,
    only: str,
    workers: int,
    out: Path | None,
    page_file: Path | None,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Tune autoscalers on one day of a trace and judge them on others."""
    profile, objective = cases.service(GOOGLENET_P4)
    records = Records(out)
    results: list[page.Result] = []
    drawn: dict[str, Path] = {}
    begin_s = time.perf_counter()
    wanted = _cases(quick, folder, seeds, judges, only)
    for number, case in enumerate(wanted, start=1):
        loads = case.loads(profile, objective, folder)
        tournament = Tuner(loads[0], loads[1:], workers=workers, store=records).run(_tell())
        results.append((case, tournament))
        say(f"{number}/{len(wanted)}  {case.name}: {time.perf_counter() - begin_s:.0f} s")
        if not as_json:
            _print(tournament)
        if plots and case.seed == 0 and case.start_time_s == cases.RAW_START_TIME_S:
            drawn[case.name] = page.draw(case, tournament, plots)
        if page_file:
            page.insert(page_file, page.tables(results, drawn, wanted[number:]))
    if as_json:
        print_json({"cases": [_content(case, tournament) for case, tournament in results]})


def _tell() -> Any:
    """Return a callback that says how far a tournament is, in steps of a tenth."""
    said = -1

    def tell(label: str, done: float) -> None:
        nonlocal said
        if int(10 * done) > said:
            said = int(10 * done)
            say(f"  {done:.0%}  {label}")

    return tell


def _print(tournament: Tournament) -> None:
    for judge, name in enumerate(tournament.judge_on):
        lines = [line(t.family, t.chosen_on(judge)) for t in tournament.families]
        print_table(
            ("", "minutes held", "over oracle", "over bound", "energy", "scalings/h"),
            [(r.label, r.held, r.over_oracle, r.over_bound, r.energy, r.scalings) for r in lines],
            title=f"{name}; bound {tournament.bounds_over_oracle[judge]:.3f}",
        )
        for score in tournament.beyond(judge):
            found = line("", score)
            print(f"beyond Sojourn: {found.label}, {found.held} at {found.over_oracle}")


def _content(case: cases.Case, tournament: Tournament) -> dict[str, Any]:
    return {
        "case": case.name,
        "seed": case.seed,
        "judged": {
            name: {
                tuned.family: {
                    "chosen": tuned.chosen.name,
                    "scores": [_score(score) for score in tuned.judged[judge]],
                }
                for tuned in tournament.families
            }
            for judge, name in enumerate(tournament.judge_on)
        },
        "bounds_over_oracle": tournament.bounds_over_oracle,
    }


def _score(score: Score) -> dict[str, Any]:
    return {
        "name": score.outcome.name,
        "held": score.held,
        "interval": score.interval,
        "over_oracle": score.over_oracle,
        "over_bound": score.over_bound,
        "energy_over_oracle": score.energy_over_oracle,
    }


if __name__ == "__main__":
    main()
