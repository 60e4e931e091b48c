"""`sojourn simulate --tune-on`: tune autoscalers on one trace and judge them on others."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoscaler.history.traces import load_trace
from autoscaler.simulator.arena import Load, Score
from autoscaler.simulator.autoscalers.registry import FAMILIES
from autoscaler.simulator.experiments import with_trace
from autoscaler.simulator.reporting.comparison import percent
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.tuning import Tournament, Tuner
from policy.errors import InvalidInputError
from sojourn.output import print_json, print_table, say

if TYPE_CHECKING:
    from autoscaler.simulator.reporting.report import Setting

_Progress = Callable[[], AbstractContextManager[Callable[[str, float], None]]]


def run(
    files: Sequence[Path],
    scenario: Scenario,
    scale: float,
    superpose: bool,
    jobs: int,
    progress: _Progress,
    setting: "Setting",
    report_file: Path | None,
    as_json: bool,
) -> None:
    """Run the tournament and report it.

    Parameters
    ----------
    files : sequence of Path
        The trace to tune on, and those to judge on.
    scenario : Scenario
        Everything but the load.
    scale, superpose
        As for `autoscaler.simulator.experiments.with_trace`.
    jobs : int
        Number of processes.
    progress : callable
        Returns a context manager for a function that shows the progress.
    setting : Setting
        For the report.
    report_file : Path or None
        HTML file to write.
    as_json : bool
        Whether to print one JSON object.
    """
    if len(set(files)) < len(files):
        raise InvalidInputError("--judge-on: must not name the trace of --tune-on, nor one twice")
    loads = [
        Load(str(file), with_trace(scenario, load_trace(file), scale, superpose)) for file in files
    ]
    with progress() as tell:
        tournament = Tuner(loads[0], loads[1:], FAMILIES, jobs).run(tell)
    # Importing matplotlib takes half a second.
    from autoscaler.simulator.reporting.tournament import line, save_tournament, verdict

    if report_file is not None:
        save_tournament(report_file, tournament, setting, scenario.objective.in_words())
    if as_json:
        print_json(_content(tournament, verdict(tournament)))
        return
    for number, name in enumerate(tournament.judge_on):
        chosen = [(tuned.family, tuned.chosen_on(number)) for tuned in tournament.families]
        rows = [line(*pair) for pair in sorted(chosen, key=lambda pair: pair[1].over_oracle)]
        print_table(
            ("tuned", "minutes held", "\N{MULTIPLICATION SIGN} oracle",
             "\N{MULTIPLICATION SIGN} bound", "energy", "scalings/h"),
            [(r.label, r.held, r.over_oracle, r.over_bound, r.energy, r.scalings) for r in rows],
            title=f"Tuned on {tournament.tune_on}, judged on {name}",
        )  # fmt: skip
    for sentence in verdict(tournament):
        click.echo(sentence)
    if report_file is not None:
        say(f"Written to {report_file}.")


def _content(tournament: Tournament, sentences: list[str]) -> dict[str, Any]:
    return {
        "tuned_on": tournament.tune_on,
        "judged_on": {
            name: {
                "bound_over_oracle": tournament.bounds_over_oracle[number],
                "families": {
                    tuned.family: {
                        "chosen": _score(tuned.chosen_on(number)),
                        "frontier": [_score(score) for score in tuned.judged[number]],
                    }
                    for tuned in tournament.families
                },
                "beyond_sojourn": [s.outcome.name for s in tournament.beyond(number)],
            }
            for number, name in enumerate(tournament.judge_on)
        },
        "tuning": {tuned.family: _score(tuned.tuning) for tuned in tournament.families},
        "verdict": sentences,
    }


def _score(score: Score) -> dict[str, Any]:
    content = asdict(score)
    outcome = content.pop("outcome")
    del outcome["windows"]
    return {**outcome, **content, "held_in_words": percent(score.held)}
