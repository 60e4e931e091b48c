"""What it gains to run batches on the event loop's own thread, behind HAProxy.

    python -m benchmarks.live.batch_placement [--quick] [--json] [--model NAME]
        [--than-ms MS] [--longest-ms MS]

Two replicas without Ray, with one CPU each, serve the same model, each behind a HAProxy of its own.
The event loop of one runs batches of up to `--longest-ms` itself, by default as a replica does, and
that of the other those of up to `--than-ms`, by default none. A closed loop of 64 connections takes
turns between the two. `live.handover` measures the batcher alone; here the event loop also reads
and writes sockets, and may lose the interpreter's lock at each. Reported is the same as by
`live.replica_sockets`.

Needs `wrk` (on Debian: apt-get install wrk).
"""

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.live.alternating_loops import closed_loop_on, show, summary, take_turns, way_to
from benchmarks.live.bare_replicas import bare_replicas
from benchmarks.live.replica_sockets import MODELS, OPTIONS
from benchmarks.peers.closed_loop import check_wrk
from benchmarks.peers.models import HOSTED
from benchmarks.peers.protocols import OpenInference, Workload, example_rows
from deployments.batcher.placement import LONGEST_ON_LOOP_MS
from sojourn.output import say


def _option(longest_ms: float) -> tuple[str, ...]:
    return (*OPTIONS, "--longest-on-loop-ms", f"{longest_ms:g}")


@click.command()
@quick_option("Five rounds instead of 20.")
@json_option
@click.option("--model", type=click.Choice(MODELS), help="Only this one.")
@click.option(
    "--than-ms", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Compared with."
)
@click.option(
    "--longest-ms",
    type=click.FloatRange(min=0),
    default=LONGEST_ON_LOOP_MS,
    show_default=True,
    help="Longest batch that the event loop runs.",
)
def main(quick: bool, as_json: bool, model: str | None, than_ms: float, longest_ms: float) -> None:
    """Measure what batches on the event loop gain."""
    if than_ms == longest_ms:
        raise click.UsageError("--than-ms and --longest-ms must differ")
    check_wrk()
    results = {}
    for name in (model,) if model else MODELS:
        say(f"batch_placement: {name}")
        served = name, HOSTED[name].import_path
        with (
            bare_replicas(1, *served, *_option(than_ms)) as before,
            bare_replicas(1, *served, *_option(longest_ms)) as after,
        ):
            workload = Workload(name, OpenInference(), example_rows(name, 256))
            runs = {
                f"{limit_ms:g} ms": closed_loop_on(way_to(one), workload)
                for limit_ms, one in ((than_ms, before), (longest_ms, after))
            }
            results[name] = summary(take_turns(runs, 5 if quick else 20))
    show(results, as_json)


if __name__ == "__main__":
    main()
