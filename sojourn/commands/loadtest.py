"""`sojourn loadtest`: send Locust load to a running service and check every answer."""

import functools
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from deployments.access.credentials import read_token
from deployments.config.user_config import SLAConfig
from loadtests.answers import parse_case
from loadtests.cases import prepare_cases, random_cases
from loadtests.records import Records
from loadtests.reporting.report import per_second, report, write_csv
from loadtests.reporting.table import table
from loadtests.reporting.thresholds import Thresholds
from loadtests.run import Settings, run
from loadtests.schedule import Schedule
from loadtests.service import model_metadata, read_json, recorded_outputs, service_sla
from loadtests.watch import ServiceWatch
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from sojourn import option_types
from sojourn.loadtest_options import schedule_of, settings_in_words
from sojourn.output import (
    command_line,
    existing_file,
    json_option,
    print_json,
    print_table,
    say,
    token_file_option,
    url_option,
)

if TYPE_CHECKING:
    from loadtests.reporting.page import Setting

#: Options that --make-cases heeds.
_OF_MAKE_CASES = {"url", "model", "token_file", "make_cases", "record", "seed"}
OUTPUT_FILES = ("report.html", "report.json", "seconds.csv")


@click.command("loadtest")
@url_option
@click.option("--model", help="Name of its model.  [default: its only one]")
@click.option(
    "--arrival-rate",
    type=option_types.above_0,
    default=50.0,
    show_default=True,
    help="Poisson arrivals, requests per second.",
)
@click.option(
    "--duration-s",
    type=option_types.above_0,
    help="Length of the test.  [default: 30, or the length of the trace]",
)
@click.option(
    "--shape",
    help="Parts with a constant rate, or a ramp, as in 20s:50,40s:50-150,20s:150.",
)
@click.option(
    "--trace",
    type=existing_file,
    help="Trace to replay: CSV with the header second,requests, or its .gz.",
)
@click.option(
    "--speedup",
    type=option_types.above_0,
    default=1.0,
    show_default=True,
    help="Seconds of the trace per second.",
)
@click.option(
    "--sla",
    "threshold",
    type=option_types.sla,
    help="The SLA to judge by, as in 100ms@99; the exit status is 1 if it is not met.  "
    "[default: the service's own, which does not change the exit status]",
)
@click.option(
    "--min-right",
    type=option_types.Number(0, 100),
    metavar="PERCENT",
    help="The exit status is 1 if less than this share of all requests got right answers.  "
    "[default: if any answer was wrong, missing, or an error other than a refusal]",
)
@click.option(
    "--max-refused",
    type=option_types.Number(0, 100),
    metavar="PERCENT",
    help="The exit status is 1 if more than this share of all requests was refused.",
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
    "--record",
    is_flag=True,
    help="With --make-cases: ask the service for each answer, and keep it as the right one.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 10_000),
    default=512,
    show_default=True,
    help="Maximum number of requests in flight, divided evenly among the workers.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that send requests; more processes can send more.",
)
@click.option(
    "--timeout-s",
    type=option_types.Number(min=0, max=86_400, min_open=True),
    default=10.0,
    show_default=True,
    help="How long a client waits.",
)
@token_file_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Folder for {', '.join(OUTPUT_FILES)}.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    url: str,
    model: str | None,
    threshold: ServiceLevelObjective | None,
    min_right: float | None,
    max_refused: float | None,
    cases: Path | None,
    make_cases: int | None,
    record: bool,
    connections: int,
    workers: int,
    timeout_s: float,
    token_file: Path | None,
    seed: int,
    out: Path | None,
    as_json: bool,
    **load: Any,
) -> None:
    """Send Locust load to a running service and check every answer.

    Requests become due at random times (Poisson arrivals), whether or not the service keeps up.
    Response times are measured from then. The exit status is 1 if an answer was wrong, missing,
    or an error other than a refusal (HTTP 429, 503 or 504), or if a threshold given with --sla,
    --min-right or --max-refused was missed.
    """
    if connections < workers:
        raise InvalidInputError(f"--connections: {workers} workers need at least as many")
    url = url.rstrip("/")
    token = read_token(token_file)
    if make_cases is not None:
        given = {option.name or "" for option in context.command.params} - _OF_MAKE_CASES
        why = "has no effect with --make-cases, which prints requests and sends no load"
        option_types.refuse_options(context, given, why)
        _make_cases(url, model, token, make_cases, record, seed)
        return
    if record:
        raise InvalidInputError("--record needs --make-cases")
    schedule = schedule_of(context, seed, **load)
    sla = None if threshold is None else SLAConfig(**asdict(threshold))
    thresholds = Thresholds(sla, min_right, max_refused)
    metadata = model_metadata(url, model, token)
    model = metadata["name"]
    sla = sla or service_sla(url, model, token)
    if sla is None:
        raise InvalidInputError(
            f"the service at {url} reports no SLA for {model!r}; give one with --sla"
        )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        model=model,
        connections=connections,
        timeout_s=timeout_s,
        duration_s=schedule.duration_s,
        seed=seed,
        workers=workers,
    )
    say(f"loadtest: {schedule.arrivals_s.size} requests in {schedule.duration_s:g} s to {url}")
    say(f"loadtest: SLA: {sla.objective.in_words()}")
    write_cases = functools.partial(prepare_cases, metadata, own=cases)
    began = datetime.now().astimezone()
    with ServiceWatch(model, functools.partial(read_json, url, token)) as watch:
        finished = run(url, schedule, settings, write_cases, token)
    result = report(finished.records, schedule, sla)
    result |= {
        "missed": thresholds.misses(result),
        "failure_examples": finished.examples,
        "service": watch.since(finished.start_s),
        "generator_cpu_us": 1e6 * finished.cpu_s / schedule.arrivals_s.size,
    }
    if as_json:
        print_json(result)
    else:
        _print_report(result, sla)
    if result["generator_fell_behind"]:
        say(
            "loadtest: the load generator fell behind (1% of the requests left "
            f"{result['generator_lag_ms']['p99']:.0f} ms late or more), so response times are "
            "overstated; use more --workers, a lower rate, or a machine with idle cores"
        )
    for missed in result["missed"]:
        say(f"loadtest: {missed}")
    if out is not None:
        from loadtests.reporting.page import Setting  # importing matplotlib takes half a second

        setting = Setting(
            model,
            began.strftime("%Y-%m-%d %H:%M:%S %Z"),
            command_line(context),
            connections,
            settings_in_words(context, schedule, sla),
        )
        _write(out, result, finished.records, schedule, sla, setting)
    context.exit(1 if result["missed"] else 0)


def _write(
    out: Path,
    result: dict[str, Any],
    records: Records,
    schedule: Schedule,
    sla: SLAConfig,
    setting: "Setting",
) -> None:
    from loadtests.reporting.page import render

    seconds = per_second(records, schedule, sla)
    page_path, json_path, csv_path = (out / name for name in OUTPUT_FILES)
    json_path.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")
    write_csv(csv_path, seconds)
    page = render(result, seconds, records, schedule, setting)
    page_path.write_text(page, encoding="utf-8")
    say(f"loadtest: wrote {', '.join(OUTPUT_FILES)} to {out}")


def _make_cases(
    url: str, model: str | None, token: str | None, number: int, record: bool, seed: int
) -> None:
    metadata = model_metadata(url, model, token)
    for case in random_cases(metadata["inputs"], number, seed):
        if record:
            case["outputs"] = recorded_outputs(url, metadata["name"], parse_case(case), token)
        click.echo(orjson.dumps(case))


def _print_report(result: dict[str, Any], sla: SLAConfig) -> None:
    headings, rows = table(result)
    lines = ([name, *cells] for name, cells in rows)
    print_table(["", *headings], lines, title=f"SLA: {sla.objective.in_words()}")
    for example in result["failure_examples"]:
        click.echo(f"{example['kind']}: {example['fault']}\n  to {example['request']}")
