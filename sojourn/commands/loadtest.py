"""`sojourn loadtest`: Locust load on a running service, every answer checked."""

import functools
from pathlib import Path
from typing import Any

import click
import orjson
from pydantic import ValidationError

from deployments.config import SLAConfig, first_line
from loadtests.cases import prepare_cases
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
from loadtests.service import model_metadata, service_sla
from policy.errors import InvalidInputError
from simulator.trace import load_trace
from sojourn.output import existing_file, json_option, print_json, print_table, say

DEFAULT_RATE_PER_S = 50.0
DEFAULT_DURATION_S = 30.0
MAX_STEPS_SHOWN = 5
OUTPUT_FILES = ("report.json", "seconds.csv", "plot.png")


@click.command("loadtest")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The service.")
@click.option("--model", default="digits", show_default=True, help="Its model.")
@click.option("--rate", type=float, help="Requests per second, Poisson.  [default: 50]")
@click.option("--duration-s", type=float, help="Length of the test.  [default: 30, or the trace's]")
@click.option("--shape", help="Rates in steps: 20s:50,40s:150,30s:50.")
@click.option("--trace", type=existing_file, help="CSV second,requests (or .gz) to replay.")
@click.option(
    "--speedup", type=float, default=1.0, show_default=True, help="Trace seconds per second."
)
@click.option("--response-time-ms", type=float, help="Of the SLA.  [default: the service's]")
@click.option("--percentile", type=float, help="Of the SLA.  [default: the service's]")
@click.option(
    "--cases", type=existing_file, help="Own requests: JSON lines with inputs and outputs."
)
@click.option(
    "--connections",
    type=click.IntRange(1, 10_000),
    default=512,
    show_default=True,
    help="Most requests on their way at a time.",
)
@click.option(
    "--timeout-s", type=float, default=10.0, show_default=True, help="Patience of a client."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--metrics-port", type=click.IntRange(1, 65535), help="Serve Prometheus metrics here."
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address for them.")
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
    response_time_ms: float | None,
    percentile: float | None,
    cases: Path | None,
    connections: int,
    timeout_s: float,
    seed: int,
    metrics_port: int | None,
    metrics_host: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Send Locust load to a running service and check every answer.

    Requests become due at random times (Poisson) whether or not the service keeps up, and response
    times count from then. Status 1: an answer was wrong, or never came.
    """
    if not 0 < timeout_s < float("inf"):
        raise InvalidInputError(f"timeout: must be above 0 s, not {timeout_s}")
    url = url.rstrip("/")
    schedule = _schedule(rate, duration_s, shape, trace, speedup, seed)
    metadata = model_metadata(url, model)
    sla = _sla(url, response_time_ms, percentile)
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
    records = run(url, schedule, settings, functools.partial(prepare_cases, metadata, own=cases))
    result = report(records, schedule, sla)
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
        _print_people(result, sla)
    if result["generator_fell_behind"]:
        say(
            "loadtest: the generator itself fell behind, so response times are overstated: "
            "use a lower rate or a machine with idle cores"
        )
    context.exit(1 if result["wrong_answers"] or result["lost"] else 0)


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
        raise InvalidInputError("--speedup is for a --trace")
    if shape is not None:
        if duration_s is not None:
            raise InvalidInputError("--shape has its own durations: leave --duration-s out")
        return poisson_schedule(parse_shape(shape), seed)
    step = Step(
        DEFAULT_DURATION_S if duration_s is None else duration_s,
        DEFAULT_RATE_PER_S if rate is None else rate,
    )
    return poisson_schedule([step], seed)


def _sla(url: str, response_time_ms: float | None, percentile: float | None) -> SLAConfig:
    told = service_sla(url)
    if told is None and (response_time_ms is None or percentile is None):
        say("loadtest: the service tells no SLA; --response-time-ms and --percentile set one")
    given = {"response_time_ms": response_time_ms, "percentile": percentile}
    chosen = (told or SLAConfig()).model_dump() | {k: v for k, v in given.items() if v is not None}
    try:
        return SLAConfig.model_validate(chosen)
    except ValidationError as error:
        raise InvalidInputError(first_line(error)) from None


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"{out}: cannot be made: {error.strerror}") from None


def _print_people(result: dict[str, Any], sla: SLAConfig) -> None:
    steps = result["by_step"]
    shown = steps if 1 < len(steps) <= MAX_STEPS_SHOWN else []
    parts = [_column(part) for part in (*shown, result)]
    headings = ["", *(f"step {number}" for number in range(1, len(shown) + 1)), "whole test"]
    rows = ([name, *(part.get(name, 0) for part in parts)] for name in _row_names(parts))
    print_table(headings, rows, title=f"SLA: {sla.objective.in_words()}")
    if result["labels_true_share"] is not None:
        click.echo(f"{100 * result['labels_true_share']:.2f}% of the labels are the true ones")


def _row_names(parts: list[dict[str, object]]) -> list[str]:
    # A step may lack a kind of failure that another has.
    return list(dict.fromkeys(name for part in parts for name in part))


def _column(part: dict[str, Any]) -> dict[str, object]:
    share, met = part["share_within_sla"], part["sla_met"]
    return {
        "target rate (requests/s)": f"{part['target_rate_per_s']:.1f}",
        "sent (requests/s)": f"{part['achieved_rate_per_s']:.1f}",
        "requests": part["requests"],
        "right answers": part["ok"],
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
