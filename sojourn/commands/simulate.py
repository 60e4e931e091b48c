"""`sojourn simulate`: simulate a fleet on a trace, or at a constant rate."""

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from policy.errors import InvalidInputError
from policy.front import FrontCosts
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.autoscalers import registry as catalog
from simulator.autoscalers.choices import Choice, choose
from simulator.engines.interface import Routing
from simulator.experiments import (
    FIXED,
    check_feasible,
    compare,
    least_predicted,
    poisson_scenario,
    predict_fixed,
    run_fixed,
)
from simulator.fleet import StartTime
from simulator.policy_tables import NAMES, policy_table
from simulator.prediction import Predicted
from simulator.reporting.comparison import (
    Comparison,
    in_joules,
    percent,
    three_digits,
    times_oracle,
)
from simulator.scenario import Scenario
from simulator.trace import load_trace
from sojourn.output import existing_file, json_option, print_json, print_table, say

if TYPE_CHECKING:
    from simulator.reporting.report import Setting

_above_0 = click.FloatRange(min=0, min_open=True)


@click.command("simulate")
@click.option("--profile", "profile_file", type=existing_file, required=True, help="Profile file.")
@click.option("--response-time-ms", type=_above_0, required=True, help="The SLA's response time.")
@click.option(
    "--percentile",
    type=click.FloatRange(min=0, max=100, min_open=True, max_open=True),
    default=99.0,
    show_default=True,
    help="Percentage of requests to answer within it.",
)
@click.option(
    "--trace",
    "trace_file",
    type=existing_file,
    help="Requests per second: CSV with the header second,requests, or its .gz.",
)
@click.option(
    "--scale", type=_above_0, default=1.0, show_default=True, help="Factor on the trace's requests."
)
@click.option(
    "--start-time-s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Time from ordering a replica until it serves requests.",
)
@click.option(
    "--autoscaler",
    "names",
    default=",".join(catalog.DEFAULT),
    show_default=True,
    help=f"Autoscalers to compare on the trace, comma-separated: {', '.join(catalog.AUTOSCALERS)}; "
    "NAME:VALUE sets the autoscaler's parameter.",
)
@click.option("--max-replicas", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option(
    "--arrival-rate",
    type=_above_0,
    help="Instead of a trace: Poisson arrivals at a fixed fleet, requests per second.",
)
@click.option("--replicas", type=click.IntRange(min=1), help="Size of the fixed fleet.")
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="Approximate number of requests sent to the fixed fleet.",
)
@click.option(
    "--batching",
    default="sla",
    show_default=True,
    help=f"How replicas batch: {', '.join(NAMES)}.",
)
@click.option(
    "--routing",
    type=click.Choice([routing.value for routing in Routing]),
    default=Routing.RANDOM.value,
    show_default=True,
    help="How the load balancer picks a replica.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results, with plots, to this HTML file.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    profile_file: Path,
    response_time_ms: float,
    percentile: float,
    trace_file: Path | None,
    scale: float,
    start_time_s: float,
    names: str,
    max_replicas: int,
    arrival_rate: float | None,
    replicas: int | None,
    requests: int,
    batching: str,
    routing: str,
    seed: int,
    report_file: Path | None,
    as_json: bool,
) -> None:
    """Simulate a fleet under its SLA, with the live service's own batching and autoscaling.

    On a trace, compare autoscalers on the same arrivals, with an oracle that knows them in advance.
    With --arrival-rate and --replicas, compare a fixed fleet with what the model predicts.
    """
    for name, value in (
        ("response-time-ms", response_time_ms),
        ("scale", scale),
        ("start-time-s", start_time_s),
        ("arrival-rate", arrival_rate or 0.0),
    ):
        if not math.isfinite(value):
            raise InvalidInputError(f"--{name}: must be a finite number, not {value}")
    _check_mode(context, trace_file is not None)
    if report_file is not None and not report_file.parent.is_dir():
        raise InvalidInputError(f"--report: there is no folder {report_file.parent}")
    profile = Profile.load(profile_file)
    objective = ServiceLevelObjective(response_time_ms, percentile)
    choices = choose(names)
    check_feasible(profile, objective)
    scenario = Scenario(
        profile=profile,
        objective=objective,
        counts=np.ones(1) if trace_file is None else load_trace(trace_file).astype(np.float64),
        scale=scale,
        start_time=StartTime(start_time_s),
        seed=seed,
        routing=Routing(routing),
        batching=policy_table(profile, objective, batching),
        max_replicas=max_replicas,
    )
    predicted = least = None
    if arrival_rate is None or replicas is None:
        with _progress() as tell:
            comparison = compare(scenario, choices, tell)
    else:
        scenario = poisson_scenario(scenario, arrival_rate, requests)
        with _progress() as tell:
            comparison = run_fixed(scenario, replicas, tell)
        predicted = predict_fixed(scenario, arrival_rate, replicas)
        least = least_predicted(scenario, arrival_rate)
    if report_file is not None:
        from simulator.reporting.report import (
            save_report,
        )  # importing matplotlib takes half a second

        load = _load_in_words(trace_file, scale, arrival_rate)
        setting = _setting(context, scenario, () if replicas else choices, load)
        save_report(report_file, comparison, setting, predicted)
    if as_json:
        print_json(_content(comparison, predicted, replicas, least))
        return
    _print(comparison, predicted, replicas, least)
    if report_file is not None:
        say(f"Written to {report_file}.")


def _load_in_words(trace_file: Path | None, scale: float, arrival_rate: float | None) -> str:
    if trace_file is None:
        return f"Poisson arrivals, {arrival_rate:g} requests/s"
    return trace_file.name + (f" \N{MULTIPLICATION SIGN} {scale:g}" if scale != 1 else "")


def _check_mode(context: click.Context, on_trace: bool) -> None:
    """Check that the options of one mode are given, and none of the other's."""
    given = {
        name
        for name in context.params
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    fixed = {"arrival_rate": "--arrival-rate", "replicas": "--replicas", "requests": "--requests"}
    traced = {"scale": "--scale", "start_time_s": "--start-time-s", "names": "--autoscaler"}
    if on_trace:
        wrong = [option for name, option in fixed.items() if name in given]
        if wrong:
            raise InvalidInputError(f"{wrong[0]}: applies to a fixed fleet; omit it or --trace")
        return
    if not {"arrival_rate", "replicas"} <= given:
        raise InvalidInputError("give --trace FILE, or --arrival-rate and --replicas")
    wrong = [option for name, option in traced.items() if name in given]
    if wrong:
        raise InvalidInputError(f"{wrong[0]}: needs --trace")


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """Show a progress bar on stderr, if that is a terminal."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("simulating", total=1.0)
        yield lambda label, done: bar.update(task, description=label, completed=done)


def _content(
    comparison: Comparison, predicted: Predicted | None, replicas: int | None, least: int | None
) -> dict[str, Any]:
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


def _print(
    comparison: Comparison, predicted: Predicted | None, replicas: int | None, least: int | None
) -> None:
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


def _setting(
    context: click.Context, scenario: Scenario, choices: Sequence[Choice], load: str
) -> "Setting":
    """Describe what was simulated, and the command that repeats it."""
    from simulator.reporting.report import Setting

    profile, delays = scenario.profile, scenario.delays
    limits = scenario.replica_model().limits
    fleet = (
        f"{scenario.start_time.median_s:g} s from order to service; at most "
        f"{scenario.max_replicas}; all begin with the oracle's first number of replicas, static "
        "with its own"
    )
    return Setting(
        title=f"{load}, {profile.model} on {profile.device}",
        command=_command_line(context),
        assumptions=(
            ("arrivals", f"{load}, seed {scenario.seed}"),
            (
                "replica",
                f"{profile.model} on {profile.device}: batches up to {profile.max_batch_size}, "
                f"{profile.capacity_per_s:.4g} requests/s at most, waiting room for "
                f"{limits.waiting_room} requests",
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
            *((("front", _front_in_words(profile.front)),) if profile.front else ()),
        ),
        autoscalers=tuple((choice.label, choice.rule) for choice in choices),
    )


def _batch_times_in_words(profile: Profile) -> str:
    if profile.latency_quantiles is None:
        return "exactly those of the profile"
    return "drawn at random, from the quantiles of the profile"


def _front_in_words(front: FrontCosts) -> str:
    where = "in turn with the device, on one CPU" if front.shares_cpu else "beside the device"
    return f"{front.request_ms:g} ms a request and {front.batch_ms:g} ms a batch, {where}"


def _command_line(context: click.Context) -> str:
    """Return the command line, without options left at their defaults."""
    words = [".venv/bin/sojourn", "simulate"]
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and name != "as_json":
            value = context.params[name]
            words += [parameter.opts[0], repr(value) if isinstance(value, float) else str(value)]
    return shlex.join(words)
