"""Options of `sojourn loadtest`: its load, its SLA, and its settings for the page."""

import os
import platform
from pathlib import Path

import click

from autoscaler.history.traces import load_trace
from deployments.config.user_config import SLAConfig
from loadtests.schedule import Schedule, Step, parse_shape, poisson_schedule, trace_schedule
from sojourn.option_types import refuse_options

DEFAULT_DURATION_S = 30.0


def schedule_of(
    context: click.Context,
    seed: int,
    *,
    arrival_rate: float,
    duration_s: float | None,
    shape: str | None,
    trace: Path | None,
    speedup: float,
) -> Schedule:
    """Return the schedule that the options of the command ask for."""
    if trace is not None:
        why = "--trace has its own rates; omit one"
        refuse_options(context, {"arrival_rate", "shape"}, why)
        return trace_schedule(load_trace(trace), speedup, seed, duration_s)
    refuse_options(context, {"speedup"}, "needs --trace")
    if shape is not None:
        why = "--shape has its own rates and durations; omit one"
        refuse_options(context, {"arrival_rate", "duration_s"}, why)
        return poisson_schedule(parse_shape(shape), seed)
    return poisson_schedule([Step(duration_s or DEFAULT_DURATION_S, arrival_rate)], seed)


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
