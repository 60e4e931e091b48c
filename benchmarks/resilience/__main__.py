"""Break a real service under load, in many ways, and count what its clients lose.

    python -m benchmarks.resilience [--quick] [--only NAME]... [--json]

`sojourn serve` runs configs/emulated-p4.yaml with two replicas behind HAProxy. An open loop of
80 requests/s over keep-alive connections, one body in fifty of 600 KB, and 60 clients that are idle
for ten seconds at a time send requests with known answers, while a process is killed or stopped, a
new version is deployed, or strangers misbehave. All experiments take about twenty-five minutes,
with ``--quick`` about ten.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.resilience.experiments import EXPERIMENTS, Experiment, run_experiment
from benchmarks.resilience.service import Service, serving
from sojourn.output import print_json, print_table, say

#: The longest that an experiment may take, with the start of its service.
QUICK_LIMIT_S, LIMIT_S = 240, 1200
COLUMNS = (
    *("sent", "right", "late", "refused", "failed", "wrong", "lost", "doubled"),
    *("worst_ms", "recovered_s", "machine_load"),
)
NAMES = [experiment.name for experiment in EXPERIMENTS]


@click.command(help=__doc__.splitlines()[0])
@quick_option("Run shorter experiments.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Run only these.")
@json_option
def main(quick: bool, only: tuple[str, ...], as_json: bool) -> None:
    """Run the experiments and print the table."""
    # The end of this process ends all that it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The table is wider than what is taken for the width of a file.
    os.environ.setdefault("COLUMNS", "130")
    chosen = [one for one in EXPERIMENTS if not only or one.name in only]
    rows = run_all(chosen, quick)
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


def run_all(chosen: list[Experiment], quick: bool) -> list[dict[str, Any]]:
    """Run experiments in order, on one service for as long as it lasts.

    One that fails has a row without numbers, and does not keep the others from being run.
    """
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        service: Service | None = None
        document: object = None
        for experiment in chosen:
            say(experiment.name)
            try:
                with time_limit(QUICK_LIMIT_S if quick else LIMIT_S):
                    if (
                        service is None
                        or document != experiment.document
                        or not service.wait_for_replicas(2, 30)
                    ):
                        service = None
                        stack.close()
                        say("  starting the service")
                        document = experiment.document
                        service = stack.enter_context(serving(experiment.document()))
                    row = run_experiment(experiment, service, quick)
            except (Exception, SystemExit) as error:
                row = _not_completed(experiment.name, str(error) or type(error).__name__)
            if experiment.fatal or row["sent"] is None:
                service = None
            rows.append(row)
            _say_row(row)
        try:
            stack.close()
        except (Exception, SystemExit) as error:
            say(f"the last service did not end: {error}")
    return rows


def _not_completed(experiment: str, reason: str) -> dict[str, Any]:
    notes = [f"not completed: {reason}"]
    return {"experiment": experiment, **dict.fromkeys(COLUMNS), "notes": notes, "statuses": {}}


def cells(row: dict[str, Any]) -> list[object]:
    """Return the numbers of a row, in the order of `COLUMNS`."""
    return [round(row[name], 1) if isinstance(row[name], float) else row[name] for name in COLUMNS]


def _say_row(row: dict[str, Any]) -> None:
    counts = zip(COLUMNS, cells(row), strict=True)
    say("  " + ", ".join(f"{name} {cell}" for name, cell in counts))
    for note in row["notes"]:
        say(f"  {note}")
    if row["statuses"]:
        say(f"  not right: {row['statuses']}")


if __name__ == "__main__":
    sys.exit(main())
