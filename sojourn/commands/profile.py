"""`sojourn profile`: measure a model's time and energy on a device, per batch size."""

import datetime
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from deployments.config.yaml_file import parse_yaml
from deployments.models.loading import DEVICES, MODELS, load_model
from deployments.models.threads import limit_threads
from deployments.profiling.energy import best_meter
from deployments.profiling.measure import measure_profile
from policy.errors import InvalidInputError
from policy.profile import Profile
from sojourn import option_types
from sojourn.output import json_option, print_json, print_table, progress_bar, say

DEFAULT_MAX_BATCH_SIZE = 32

# With this many CPUs, the event loop and the batches each have one.
_CPUS_OF_BOTH = 2


@click.command("profile")
@click.option(
    "--model",
    "import_path",
    required=True,
    help=f"package.module:Class, or one of {', '.join(MODELS)}.",
)
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True)
@click.option(
    "--out",
    required=True,
    type=option_types.new_file,
    help="Profile file to write.",
)
@click.option("--name", help="Name of the model in the profile.  [default: the name of its class]")
@click.option(
    "--max-batch-size",
    type=click.IntRange(min=1),
    help=f"Largest batch.  [default: that of the model's own profile, or {DEFAULT_MAX_BATCH_SIZE}]",
)
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the model."
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Batches to measure of each size.",
)
@click.option(
    "--cpus",
    type=option_types.Number(min=0, max=1024, min_open=True),
    default=1.0,
    show_default=True,
    help="The model's CPUs, and thus threads: num_cpus of the config.",
)
@click.option(
    "--event-loop/--no-event-loop",
    "with_event_loop",
    default=True,
    show_default=True,
    help="Measure what requests cost the event loop, which takes about four seconds.",
)
@json_option
def command(
    import_path: str,
    device: str,
    out: Path,
    name: str | None,
    max_batch_size: int | None,
    options: Sequence[str],
    repeats: int,
    cpus: float,
    with_event_loop: bool,
    as_json: bool,
) -> None:
    """Measure a model's time and energy on a device, per batch size.

    The profile also records the variation of batch times, the event loop's cost per request, and
    the number of CPUs.
    """
    model_name = name or import_path.rpartition(":")[2].lower()
    _check_out(out, model_name)
    sys.path.insert(0, str(Path.cwd()))  # the user's model may be in the working directory
    limit_threads(cpus)
    model = load_model(import_path, parse_options(options), device)
    own = model.profile()
    if max_batch_size is None:
        max_batch_size = own.max_batch_size if own else DEFAULT_MAX_BATCH_SIZE
    elif own and max_batch_size > own.max_batch_size:
        raise InvalidInputError(
            f"--max-batch-size: the model's own profile ends at {own.max_batch_size}, "
            f"not {max_batch_size}"
        )
    energy_meter, energy_note = best_meter(device, model)
    with progress_bar() as update:
        profile = measure_profile(
            model,
            model_name=model_name,
            device=device,
            max_batch_size=max_batch_size,
            repeats=repeats,
            variation=True,
            energy_meter=energy_meter,
            energy_note=energy_note,
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            progress=lambda share_done: update("profiling", share_done),
        )
    profile = replace(profile, cpus=cpus)
    if with_event_loop:
        # The server's libraries take a second.
        from deployments.serving.event_loop_costs import measure_event_loop, runs_on_the_cpu

        shares_cpu = device == "cpu" and cpus < _CPUS_OF_BOTH and runs_on_the_cpu(model, 1)
        costs = measure_event_loop(model, profile, shares_cpu=shares_cpu)
        profile = replace(profile, event_loop=costs)
    profile.save(out)
    if as_json:
        print_json(profile.to_dict())
    else:
        _print_profile(profile)
        say(f"written to {out}")


def _check_out(out: Path, model_name: str) -> None:
    """Refuse to overwrite what is not an earlier profile of this model."""
    if not out.exists():
        return
    try:
        found = f"the profile of {Profile.load(out).model!r}"
    except InvalidInputError:
        found = "no profile"
    if found != f"the profile of {model_name!r}":
        raise InvalidInputError(f"--out: {out} is {found}; choose another file, or remove it")


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` pairs; the values are YAML, as in the config."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InvalidInputError(f"--option: must be KEY=VALUE, not {pair!r}")
        if key in options:
            raise InvalidInputError(f"--option: {key} is given twice")
        try:
            options[key] = parse_yaml(value)
        except InvalidInputError as error:
            raise InvalidInputError(f"--option: {key}: {error}") from None
    return options


def _print_profile(profile: Profile) -> None:
    headings = ["batch size", "p50 ms", "p99 ms", "fitted ms", "requests/s"]
    if profile.energy_mj is not None:
        headings.append("energy mJ")
    rows: list[list[object]] = []
    for measured in profile.measured["batch_sizes"]:
        size = measured["batch_size"]
        fitted_ms = float(profile.latency_ms[size - 1])
        per_s = f"{1e3 * size / fitted_ms:,.0f}"
        row = [size, measured["p50_ms"], measured["p99_ms"], fitted_ms, per_s]
        if profile.energy_mj is not None:
            row.append(float(profile.energy_mj[size - 1]))
        rows.append(row)
    hardware = profile.measured["hardware"]
    print_table(headings, rows, f"{profile.model} on {profile.device} ({hardware})")
    fit = profile.measured["fit"]["latency_ms"]
    if fit["form"] == "line":
        say(f"latency: {fit['fixed']:.4g} ms + {fit['per_request']:.4g} ms per request")
    else:
        say("latency: not linear; the table is the isotonic regression of the medians")
    event_loop = profile.event_loop
    if event_loop is not None:
        where = "on the same CPU as" if event_loop.shares_cpu else "in parallel with"
        say(
            f"event loop: {1e3 * event_loop.request_ms:.3g} µs per request + "
            f"{1e3 * event_loop.batch_ms:.3g} µs per batch, {where} the batches"
        )
    none = "none; " if profile.energy_mj is None else ""
    say(f"energy: {none}{profile.measured['energy_source']}")
