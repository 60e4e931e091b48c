"""Options of `sojourn loadtest`: its load, its SLA, and its settings for the page."""

import os
import platform
from pathlib import Path

import click

from autoscaler.history.traces import load_trace
from deployments.config.user_config import SLAConfig
from loadtests.schedule import Schedule, Step, parse_shape, poisson_schedule, trace_schedule
from policy.errors import InvalidInputError

DEFAULT_RATE_PER_S = 50.0
DEFAULT_DURATION_S = 30.0


def schedule_of(
    arrival_rate: float | None,
    duration_s: float | None,
    shape: str | None,
    trace: Path | None,
    speedup: float,
    seed: int,
) -> Schedule:
    """Return the schedule for the options, which are None where not given."""
    if trace is not None and (arrival_rate is not None or shape is not None):
        raise InvalidInputError("--trace has its own rates; omit --arrival-rate and --shape")
    if trace is not None:
        return trace_schedule(load_trace(trace), speedup, seed, duration_s)
    if speedup != 1.0:
        raise InvalidInputError("--speedup needs --trace")
    if shape is not None:
        if arrival_rate is not None or duration_s is not None:
            raise InvalidInputError(
                "--shape has its own rates and durations; omit --arrival-rate and --duration-s"
            )
        return poisson_schedule(parse_shape(shape), seed)
    step = Step(
        DEFAULT_DURATION_S if duration_s is None else duration_s,
        DEFAULT_RATE_PER_S if arrival_rate is None else arrival_rate,
    )
    return poisson_schedule([step], seed)


def settings_in_words(
    context: click.Context, schedule: Schedule, sla: SLAConfig
) -> list[tuple[str, str]]:
    """Return the name and the value of each setting, for people."""
    given = context.params
    parts = ", then ".join(step.in_words() for step in schedule.steps)
    right, refused = given["min_right"], given["max_refused"]
    limits = [
        *(["the SLA met"] if given["threshold"] else []),
        "no answer wrong, missing, or an error other than a refusal"
        if right is None
        else f"at least {right:g}% right answers",
        *([] if refused is None else [f"at most {refused:g}% refused"]),
    ]
    machine = f"{platform.node()}: {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    return [
        ("service", given["url"]),
        ("SLA", sla.objective.in_words() + ("" if given["threshold"] else ", by the service")),
        ("passes with", ", ".join(limits)),
        ("load", given["trace"].name if given["trace"] else parts),
        ("arrivals", f"Poisson, seed {given['seed']}, fixed before the test"),
        ("requests", str(given["cases"] or "chosen by the inputs that the model takes")),
        ("senders", f"{given['workers']}, {given['connections']} connections at most"),
        ("timeout", f"{given['timeout_s']:g} s"),
        ("generator ran on", machine),
    ]
