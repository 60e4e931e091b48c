"""Break a real service under load, in many ways, and count what its clients lose.

    python -m benchmarks.resilience [--quick] [--only NAME]... [--json] [--page FILE]

`sojourn serve` runs configs/emulated-p4.yaml with two replicas behind HAProxy. An open loop of
80 requests/s over keep-alive connections, one body in fifty of 600 KB, and 60 clients that are idle
for ten seconds at a time send requests with known answers, while a process is killed or stopped, a
new version is deployed, or strangers misbehave. Three experiments have a cluster of two nodes
(`benchmarks.resilience.nodes`) and take about three minutes; the others take less than two. All of
them take about forty minutes, with ``--quick`` about fifteen. ``--page`` puts the table into a
page.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.resilience.experiments import EXPERIMENTS, Experiment, run_experiment
from benchmarks.resilience.report import COLUMNS, around, cells, not_completed, write_into
from benchmarks.resilience.service import Service
from sojourn.output import print_json, print_table, say

#: The longest that an experiment may take, with the start of its service.
QUICK_LIMIT_S, LIMIT_S = 240, 1200
NAMES = [experiment.name for experiment in EXPERIMENTS]


@click.command(help=__doc__.splitlines()[0])
@quick_option("Run shorter experiments.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Run only these.")
@click.option(
    "--page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Put the table between the marks of this page, after each experiment.",
)
@json_option
def main(quick: bool, only: tuple[str, ...], page: Path | None, as_json: bool) -> None:
    """Run the experiments and print the table."""
    # Whoever ends this wants what it has started to end, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The table is wider than what is taken for the width of a file.
    os.environ.setdefault("COLUMNS", "130")
    if page is not None:
        around(page)  # now rather than after the first experiment
    chosen = [one for one in EXPERIMENTS if not only or one.name in only]
    rows = run_all(chosen, quick, page)
    if as_json:
        print_json({"experiments": rows})
        return
    print_table(("experiment", *COLUMNS), [[row["experiment"], *cells(row)] for row in rows])
    for row in rows:
        for note in row["notes"]:
            click.echo(f"{row['experiment']}: {note}")


@contextmanager
def time_limit(limit_s: int) -> Iterator[None]:
    """Raise `TimeoutError` in the context when it has taken so long."""

    def give_up(_number: int, _frame: object) -> None:
        raise TimeoutError(f"it took more than {limit_s} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_all(chosen: list[Experiment], quick: bool, page: Path | None) -> list[dict[str, Any]]:
    """Run experiments in order, on one service for as long as it lasts.

    One that fails has a row without numbers, and does not keep the others from being run.
    """
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        service: Service | None = None
        kind: object = None
        for experiment in chosen:
            say(f"{experiment.name}: {(experiment.fault.__doc__ or '').splitlines()[0]}")
            try:
                with time_limit(QUICK_LIMIT_S if quick else LIMIT_S):
                    usable = service is not None and kind == experiment.kind
                    if not usable or service is None or not service.wait_for_replicas(2, 30):
                        service = None
                        stack.close()
                        say("  starting the service")
                        kind = experiment.kind
                        service = stack.enter_context(experiment.start(experiment.document()))
                    found = run_experiment(experiment, service, quick)
            except (Exception, SystemExit) as error:
                found = [not_completed(experiment.name, str(error) or type(error).__name__)]
            if experiment.fatal or found[0]["sent"] is None:
                service = None
            rows += found
            if page is not None:
                write_into(page, rows)
            for row in found:
                _say_row(row)
        try:
            stack.close()
        except (Exception, SystemExit) as error:
            say(f"the last service did not end: {error}")
    return rows


def _say_row(row: dict[str, Any]) -> None:
    counts = zip(COLUMNS, cells(row), strict=True)
    say("  " + ", ".join(f"{name} {cell}" for name, cell in counts))
    for note in row["notes"]:
        say(f"  {note}")
    if row["statuses"]:
        say(f"  not right: {row['statuses']}")


if __name__ == "__main__":
    sys.exit(main())
