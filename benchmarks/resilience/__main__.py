"""Break a real service under load, in many ways, and count what its clients lose.

    python -m benchmarks.resilience [--quick] [--only NAME]... [--rounds N] [--json]

`sojourn serve` runs configs/emulated-p4.yaml with two replicas behind HAProxy. An open loop of
80 requests/s over keep-alive connections, one body in fifty of 600 KB, and 60 clients that are idle
for ten seconds at a time send requests with known answers, while a process is killed or stopped, a
new version is deployed, or strangers misbehave. All experiments take about twenty-five minutes,
with ``--quick`` about ten. With `--rounds`, they are repeated, and the memory of each process is
shown after each: its proportional set size, which counts a shared page once.
"""

import signal
from contextlib import ExitStack
from typing import Any

import click

from benchmarks.arguments import cell, json_option, print_result, quick_option
from benchmarks.resilience.experiments import EXPERIMENTS, Experiment, run_experiment
from benchmarks.resilience.service import Document, Service, serving
from sojourn.output import say

NAMES = [experiment.name for experiment in EXPERIMENTS]


@click.command(help=__doc__.splitlines()[0])
@quick_option("Run shorter experiments.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Run only these.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, help="How often to run them.")
@json_option
def main(quick: bool, only: tuple[str, ...], rounds: int, as_json: bool) -> None:
    """Run the experiments and print the table."""
    # The end of this process ends all that it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = [one for one in EXPERIMENTS if not only or one.name in only]
    print_result({"experiments": run_all(rounds * chosen, quick, rounds > 1)}, as_json)


def run_all(chosen: list[Experiment], quick: bool, with_memory: bool) -> list[dict[str, Any]]:
    """Run experiments in order, on one service for as long as it lasts.

    One that fails has a row without numbers, and does not keep the others from being run.
    """
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        service: Service | None = None
        document: Document | None = None
        for experiment in chosen:
            say(experiment.name)
            try:
                if (
                    service is None
                    or document != experiment.document()
                    or not service.wait_for_replicas(2, 30)
                ):
                    service = None
                    stack.close()
                    say("  starting the service")
                    document = experiment.document()
                    service = stack.enter_context(serving(document))
                row = run_experiment(experiment, service, quick)
                if with_memory:
                    row["memory_mib"] = service.memory_mib()
            except (Exception, SystemExit) as error:
                service = None
                reason = str(error) or type(error).__name__
                row = {"experiment": experiment.name, "notes": [f"not completed: {reason}"]}
            if experiment.fatal:
                service = None
            rows.append(row)
            say("  " + ", ".join(f"{name} {cell(value)}" for name, value in row.items()))
        try:
            stack.close()
        except (Exception, SystemExit) as error:
            say(f"the last service did not end: {error}")
    return rows


if __name__ == "__main__":
    main()
