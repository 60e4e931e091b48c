"""Output of `sojourn simulate`: tables, JSON content, and the setting in words."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoscaler.simulator.arena import Score
from autoscaler.simulator.autoscalers.registry import Choice
from autoscaler.simulator.experiments import FIXED
from autoscaler.simulator.prediction import Predicted
from autoscaler.simulator.reporting.comparison import (
    Comparison,
    in_joules,
    percent,
    three_digits,
    times_oracle,
)
from autoscaler.simulator.reporting.tournament import line, verdict
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.tuning import Tournament
from policy.event_loop import EventLoopCosts
from policy.profile import Profile
from sojourn.output import command_line, print_json, print_table

if TYPE_CHECKING:
    from autoscaler.simulator.reporting.report import Setting


def content(
    comparison: Comparison, predicted: Predicted | None, replicas: int | None, least: int | None
) -> dict[str, Any]:
    """Return the content of the JSON object."""
    rows = {row.name: row.to_dict() for row in comparison.rows}
    content: dict[str, Any] = {
        "sla": asdict(comparison.objective),
        "requests": int(comparison.runs[0].offered.sum()),
        "seconds": comparison.seconds,
        "autoscalers": {run.name: rows[run.name] for run in comparison.runs},
        "verdict": comparison.verdict(),
    }
    if replicas is not None:
        # At a constant rate the oracle runs the least number of replicas that meets the SLA.
        rows[FIXED]["over_oracle"] = None if least is None else replicas / least
        content["least_replicas"] = least
        content["predicted"] = predicted and {
            "service_level": predicted.service_level,
            "response_percentiles_ms": {f"{p:g}": ms for p, ms in predicted.percentiles_ms},
            "mean_power_w": predicted.mean_power_w,
            "bottleneck": predicted.bottleneck,
        }
    return content


def print_comparison(
    comparison: Comparison, predicted: Predicted | None, replicas: int | None, least: int | None
) -> None:
    """Print the runs side by side, or one run with its prediction."""
    if replicas is None:
        _print_side_by_side(comparison)
    else:
        _print_beside_prediction(comparison, predicted)
    for sentence in comparison.verdict():
        click.echo(sentence)
    if replicas is not None:
        click.echo(
            "According to the model, no allowed number of replicas meets the SLA."
            if least is None
            else f"According to the model, the SLA needs {least}, batching as a live replica does."
        )


def _print_side_by_side(comparison: Comparison) -> None:
    requests = comparison.runs[0].offered.sum()
    print_table(
        (
            "autoscaler",
            "SLA",
            "in time",
            "minutes",
            "replica-h",
            "\N{MULTIPLICATION SIGN} oracle",
            "energy",
        ),
        [
            (
                row.label,
                "kept" if row.keeps_sla else "missed",
                percent(row.service_level),
                percent(row.compliant_windows),
                three_digits(row.replica_seconds / 3600),
                times_oracle(row),
                in_joules(row.energy_j),
            )
            for row in comparison.rows
        ],
        title=f"{requests:,.0f} requests in {comparison.seconds / 60:.4g} minutes, "
        f"{comparison.objective.in_words()}",
    )


def _print_beside_prediction(comparison: Comparison, predicted: Predicted | None) -> None:
    (row,) = comparison.rows
    seen = row.response_percentiles_ms
    model = {} if predicted is None else {f"{p:g}": ms for p, ms in predicted.percentiles_ms}
    model_power_w = None if predicted is None else predicted.mean_power_w
    power_w = None if row.energy_j is None else row.energy_j / comparison.seconds
    level = "-" if predicted is None else f"{predicted.service_level:.3%}"
    lines: list[tuple[object, ...]] = [("in time", level, f"{row.service_level:.3%}")]
    lines += [(f"p{p} ms", model.get(p, "-"), "-" if ms is None else ms) for p, ms in seen.items()]
    if power_w is not None:
        lines.append(("mean power W", "-" if model_power_w is None else model_power_w, power_w))
    model_stage = "-" if predicted is None else predicted.bottleneck
    lines.append(("bottleneck", model_stage, row.bottleneck))
    print_table(
        ("", "predicted", "simulated"),
        lines,
        title=f"{comparison.runs[0].offered.sum():,.0f} requests, {row.label}, "
        f"{comparison.objective.in_words()}",
    )


def print_tournament(tournament: Tournament, *, as_json: bool) -> None:
    """Print each family's results on the traces that it was not tuned on."""
    if as_json:
        print_json(_tournament_content(tournament, verdict(tournament)))
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


def _tournament_content(tournament: Tournament, sentences: list[str]) -> dict[str, Any]:
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


def load_in_words(trace_file: Path | None, scale: float, arrival_rate: float | None) -> str:
    """Return a description of the load: a trace, or Poisson arrivals."""
    if trace_file is None:
        return f"Poisson arrivals, {arrival_rate:g} requests/s"
    return trace_file.name + (f" \N{MULTIPLICATION SIGN} {scale:g}" if scale != 1 else "")


def setting_of(
    context: click.Context, scenario: Scenario, choices: Sequence[Choice], load: str
) -> "Setting":
    """Describe the simulation, and the command that repeats it.

    `choices` are the autoscalers, none for a fixed fleet; `load` describes the load.
    """
    from autoscaler.simulator.reporting.report import (
        Setting,  # importing matplotlib takes half a second
    )

    profile, delays = scenario.profile, scenario.delays
    limits = scenario.replica_model().limits
    fleet = (
        f"{_starts_in_words(scenario)}; at most "
        f"{scenario.max_replicas}; all begin with the oracle's first number of replicas"
    )
    return Setting(
        title=f"{load}, {profile.model} on {profile.device}",
        command=command_line(context),
        assumptions=(
            ("arrivals", f"{load}, seed {scenario.seed}"),
            *(
                (
                    (
                        "history",
                        f"Sojourn learns from {scenario.history.seconds / 86_400:.3g} days before",
                    ),
                )
                if scenario.history
                else ()
            ),
            (
                "replica",
                f"{profile.model} on {profile.device}: batches up to {profile.max_batch_size}, "
                f"{profile.capacity_per_s:.4g} requests/s at most, waiting room for "
                f"{limits.max_queue_rows} requests",
            ),
            ("batching", f"{context.params['batching']}, one row per request"),
            (
                "routing",
                f"{scenario.routing.value}; a refused request is sent to another replica, up to "
                f"{delays.retries} times; {delays.request_delay_ms:g} ms to a replica, "
                f"{delays.reply_delay_ms:g} ms back",
            ),
            *((("starts", fleet),) if choices else ()),
            ("cost", "a replica is paid for from its order until it has stopped"),
            ("batch times", f"{_batch_times_in_words(profile)}; no batch fails"),
            *(
                (("event_loop", _event_loop_in_words(profile.event_loop)),)
                if profile.event_loop
                else ()
            ),
        ),
        autoscalers=tuple((choice.label, choice.rule) for choice in choices),
    )


def _starts_in_words(scenario: Scenario) -> str:
    start, failed = scenario.start_time, scenario.failures.failed_start_share
    spread = f", lognormal with a spread of {start.spread:g}" if start.spread else ""
    fails = f"; {percent(failed)} of them fail" if failed else ""
    standby = scenario.standby_start_time
    near = f"; {standby.median_s:g} s for a standby" if standby else ""
    return f"{start.median_s:g} s from order to service{spread}{fails}{near}"


def _batch_times_in_words(profile: Profile) -> str:
    if profile.latency_quantiles is None:
        return "exactly those of the profile"
    return "drawn at random, from the quantiles of the profile"


def _event_loop_in_words(event_loop: EventLoopCosts) -> str:
    where = (
        "in turn with the device, on one CPU"
        if event_loop.shares_cpu
        else "in parallel with the device"
    )
    return f"{event_loop.request_ms:g} ms a request and {event_loop.batch_ms:g} ms a batch, {where}"
