"""`sojourn loadtest`: send Locust load to a running service and check every answer."""

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import click
import orjson

from autoscaler.history.traces import load_trace
from deployments.access.credentials import read_token
from deployments.config import SLAConfig
from deployments.validation import validate
from loadtests.answers import parse_case
from loadtests.cases import prepare_cases
from loadtests.made_cases import image_cases, random_cases
from loadtests.plot import save_plot
from loadtests.report import per_second, report, write_csv
from loadtests.run import Settings, run
from loadtests.schedule import (
    Schedule,
    Step,
    parse_shape,
    poisson_schedule,
    trace_schedule,
)
from loadtests.service import model_metadata, recorded_outputs, service_sla
from policy.errors import InvalidInputError
from sojourn.output import existing_file, json_option, print_json, print_table, say

DEFAULT_RATE_PER_S = 50.0
DEFAULT_DURATION_S = 30.0
MAX_STEPS_SHOWN = 5
OUTPUT_FILES = ("report.json", "seconds.csv", "plot.png")


@click.command("loadtest")
@click.option(
    "--url", default="http://127.0.0.1:8000", show_default=True, help="URL of the service."
)
@click.option("--model", default="digits", show_default=True, help="Name of its model.")
@click.option("--rate", type=float, help="Poisson arrivals, requests per second.  [default: 50]")
@click.option(
    "--duration-s",
    type=float,
    help="Length of the test.  [default: 30, or the length of the trace]",
)
@click.option("--shape", help="Arrival rates in steps, as in 20s:50,40s:150,30s:50.")
@click.option(
    "--trace",
    type=existing_file,
    help="Trace to replay: CSV with the header second,requests, or its .gz.",
)
@click.option(
    "--speedup", type=float, default=1.0, show_default=True, help="Seconds of the trace per second."
)
@click.option(
    "--sla",
    "threshold",
    metavar="TIMEms@PERCENT",
    help="The SLA to judge by, as in 100ms@99; the exit status is 1 if it is not met.  "
    "[default: the service's own, which does not change the exit status]",
)
@click.option(
    "--cases",
    type=existing_file,
    help="Your own requests: JSON lines with inputs and, if known, outputs.  [default: known ones "
    "for a bundled model, random ones for another]",
)
@click.option(
    "--make-cases",
    type=click.IntRange(min=1),
    metavar="N",
    help="Send no load: print N requests for --cases, with random values.",
)
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --make-cases: take the first N images of this folder instead of random values.",
)
@click.option(
    "--record",
    is_flag=True,
    help="With --make-cases: ask the service for each answer, and keep it as the right one.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 10_000),
    default=512,
    show_default=True,
    help="Maximum number of requests in flight.",
)
@click.option(
    "--timeout-s", type=float, default=10.0, show_default=True, help="How long a client waits."
)
@click.option(
    "--token-file",
    type=existing_file,
    help="File with the token to send.  [default: the one in $SOJOURN_TOKEN, if any]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--metrics-port", type=click.IntRange(1, 65535), help="Serve Prometheus metrics here."
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, help="Address of the metrics."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for report.json, seconds.csv and plot.png.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    url: str,
    model: str,
    rate: float | None,
    duration_s: float | None,
    shape: str | None,
    trace: Path | None,
    speedup: float,
    threshold: str | None,
    cases: Path | None,
    make_cases: int | None,
    images: Path | None,
    record: bool,
    connections: int,
    timeout_s: float,
    token_file: Path | None,
    seed: int,
    metrics_port: int | None,
    metrics_host: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Send Locust load to a running service and check every answer.

    Requests become due at random times (Poisson arrivals), whether or not the service keeps up.
    Response times are measured from then. The exit status is 1 if an answer was wrong or missing,
    or if the SLA given with --sla was not met.
    """
    if not 0 < timeout_s < float("inf"):
        raise InvalidInputError(f"timeout: must be above 0 s, not {timeout_s}")
    url = url.rstrip("/")
    token = read_token(token_file)
    if make_cases is not None:
        _make_cases(url, model, token, make_cases, images, record, seed)
        return
    if images is not None or record:
        raise InvalidInputError("--images and --record need --make-cases")
    schedule = _schedule(rate, duration_s, shape, trace, speedup, seed)
    sla = parse_sla(threshold) if threshold is not None else None
    metadata = model_metadata(url, model, token)
    if sla is None:
        sla = service_sla(url, token)
    if sla is None:
        raise InvalidInputError(f"the service at {url} reports no SLA; give one with --sla")
    if out is not None:
        _make_folder(out)
    settings = Settings(
        model=model,
        connections=connections,
        timeout_s=timeout_s,
        duration_s=schedule.duration_s,
        seed=seed,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
    )
    say(f"loadtest: {schedule.arrivals_s.size} requests in {schedule.duration_s:g} s to {url}")
    say(f"loadtest: SLA: {sla.objective.in_words()}")
    write_cases = functools.partial(prepare_cases, metadata, own=cases)
    records, examples = run(url, schedule, settings, write_cases, token)
    result = {**report(records, schedule, sla), "wrong_answer_examples": examples}
    if out is not None:
        seconds = per_second(records, schedule, sla)
        json_path, csv_path, plot_path = (out / name for name in OUTPUT_FILES)
        json_path.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")
        write_csv(csv_path, seconds)
        save_plot(plot_path, seconds, result, f"Load test of {model}")
        say(f"loadtest: wrote {', '.join(OUTPUT_FILES)} to {out}")
    if as_json:
        print_json(result)
    else:
        _print_report(result, sla)
    if result["generator_fell_behind"]:
        say(
            "loadtest: the load generator fell behind, so response times are overstated; "
            "use a lower rate or a machine with idle cores"
        )
    missed = threshold is not None and not result["sla_met"]
    if missed:
        say(f"loadtest: the SLA was not met: {sla.objective.in_words()}")
    context.exit(1 if result["wrong_answers"] or result["lost"] or missed else 0)


def _make_cases(
    url: str,
    model: str,
    token: str | None,
    number: int,
    images: Path | None,
    record: bool,
    seed: int,
) -> None:
    inputs = model_metadata(url, model, token)["inputs"]
    made = random_cases(inputs, number, seed) if images is None else image_cases(inputs, images)
    for case in itertools.islice(made, number):
        if record:
            case["outputs"] = recorded_outputs(url, model, parse_case(case), token)
        click.echo(orjson.dumps(case))


def _schedule(
    rate: float | None,
    duration_s: float | None,
    shape: str | None,
    trace: Path | None,
    speedup: float,
    seed: int,
) -> Schedule:
    if sum(given is not None for given in (rate, shape, trace)) > 1:
        raise InvalidInputError("give one of --rate, --shape and --trace")
    if trace is not None:
        return trace_schedule(load_trace(trace), speedup, seed, duration_s)
    if speedup != 1.0:
        raise InvalidInputError("--speedup needs --trace")
    if shape is not None:
        if duration_s is not None:
            raise InvalidInputError("--shape sets its own durations; omit --duration-s")
        return poisson_schedule(parse_shape(shape), seed)
    step = Step(
        DEFAULT_DURATION_S if duration_s is None else duration_s,
        DEFAULT_RATE_PER_S if rate is None else rate,
    )
    return poisson_schedule([step], seed)


def parse_sla(text: str) -> SLAConfig:
    """Return the SLA in a text such as ``100ms@99``.

    Raises
    ------
    InvalidInputError
        The text has another form, or a value is out of range.
    """
    match = re.fullmatch(r"([0-9.]+)(ms|s)@([0-9.]+)%?", text)
    try:
        if match is None:
            raise ValueError
        value, unit, percentile = match.groups()
        response_time_ms = float(value) * (1 if unit == "ms" else 1000)
        sla = {"response_time_ms": response_time_ms, "percentile": float(percentile)}
    except ValueError:
        raise InvalidInputError(f"--sla: must be like 100ms@99, not {text!r}") from None
    return validate(SLAConfig, sla, "--sla")


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"--out: cannot create {out}: {error.strerror}") from None


def _print_report(result: dict[str, Any], sla: SLAConfig) -> None:
    steps = result["by_step"]
    shown = steps if 1 < len(steps) <= MAX_STEPS_SHOWN else []
    parts = [_column(part) for part in (*shown, result)]
    headings = ["", *(f"step {number}" for number in range(1, len(shown) + 1)), "whole test"]
    rows = ([name, *(part.get(name, 0) for part in parts)] for name in _row_names(parts))
    print_table(headings, rows, title=f"SLA: {sla.objective.in_words()}")
    if result["labels_true_share"] is not None:
        click.echo(f"{100 * result['labels_true_share']:.2f}% of the labels match the ground truth")
    for example in result["wrong_answer_examples"]:
        click.echo(f"wrong answer: {example['fault']}\n  to {example['request']}")


def _row_names(parts: list[dict[str, object]]) -> list[str]:
    # A kind of failure may occur in one step only.
    return list(dict.fromkeys(name for part in parts for name in part))


def _column(part: dict[str, Any]) -> dict[str, object]:
    share, met = part["share_within_sla"], part["sla_met"]
    return {
        "target rate (requests/s)": f"{part['target_rate_per_s']:.1f}",
        "sent (requests/s)": f"{part['achieved_rate_per_s']:.1f}",
        "requests": part["requests"],
        # Without outputs in the cases, nobody knows what is right.
        **({"right answers": part["ok"]} if part["ok"] or not part["answered"] else {}),
        **({"answered": part["answered"]} if part["answered"] else {}),
        "wrong answers": part["wrong_answers"],
        "lost": part["lost"],
        **{
            f"p{percentile} (ms)": "–" if value is None else f"{value:.1f}"
            for percentile, value in part["response_percentiles_ms"].items()
        },
        "within the SLA (%)": "–" if share is None else f"{100 * share:.2f}",
        "SLA": {None: "–", True: "met", False: "not met"}[met],
        **{f"failed: {kind}": count for kind, count in part["failed"].items()},
    }
