"""Break a real service under load, in many ways, and count what its clients lose.

    python -m benchmarks.resilience [--quick] [--only NAME]... [--list] [--json]

`sojourn serve` runs configs/emulated-p4.yaml with two replicas behind HAProxy. An open loop of
80 requests/s over keep-alive connections, one body in fifty of 600 KB, and 60 clients that are idle
for ten seconds at a time send requests with known answers, while a process is killed or stopped, a
new version is deployed, or strangers misbehave. Each experiment takes less than two minutes, all of
them half an hour; ``--quick`` runs the most telling ones in six minutes.
"""

import os
import sys
from contextlib import ExitStack
from typing import Any

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.resilience.experiments import EXPERIMENTS, Experiment, run_experiment
from benchmarks.resilience.service import Service, serving
from sojourn.output import print_json, print_table, say

COLUMNS = (
    *("sent", "right", "late", "refused", "failed", "wrong", "lost", "doubled"),
    *("worst_ms", "recovered_s"),
)
NAMES = [experiment.name for experiment in EXPERIMENTS]


@click.command(help=__doc__.splitlines()[0])
@quick_option("Run only the most telling experiments, and shorter ones.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Run only these.")
@click.option("--list", "list_only", is_flag=True, help="List the experiments and exit.")
@json_option
def main(quick: bool, only: tuple[str, ...], list_only: bool, as_json: bool) -> int:
    """Run the experiments and print the table."""
    chosen = [one for one in EXPERIMENTS if (one.name in only if only else one.quick or not quick)]
    if list_only:
        print_table(
            ("experiment", "what happens"), [(one.name, one.fault.__doc__) for one in chosen]
        )
        return 0
    # The table is wider than what is taken for the width of a file.
    os.environ.setdefault("COLUMNS", "130")
    rows = run_all(chosen, quick)
    if as_json:
        print_json({"experiments": rows})
    else:
        print_table(("experiment", *COLUMNS), [[row["experiment"], *_cells(row)] for row in rows])
        for row in rows:
            for note in row["notes"]:
                click.echo(f"{row['experiment']}: {note}")
    return 0


def run_all(chosen: list[Experiment], quick: bool) -> list[dict[str, Any]]:
    """Run experiments in order, on one service for as long as it lasts."""
    rows = []
    with ExitStack() as stack:
        service: Service | None = None
        document: object = None
        for experiment in chosen:
            usable = service is not None and experiment.document is document
            if not usable or service is None or not service.wait_for_replicas(2, 30):
                stack.close()
                say("starting the service")
                document = experiment.document
                service = stack.enter_context(serving(experiment.document()))
            say(f"{experiment.name}: {(experiment.fault.__doc__ or '').splitlines()[0]}")
            row = run_experiment(experiment, service, quick)
            rows.append(row)
            say(
                "  "
                + ", ".join(
                    f"{name} {cell}" for name, cell in zip(COLUMNS, _cells(row), strict=True)
                )
            )
            for note in row["notes"]:
                say(f"  {note}")
            if row["statuses"]:
                say(f"  not right: {row['statuses']}")
            if experiment.fatal:
                service = None
    return rows


def _cells(row: dict[str, Any]) -> list[object]:
    return [round(row[name], 1) if isinstance(row[name], float) else row[name] for name in COLUMNS]


if __name__ == "__main__":
    sys.exit(main())
