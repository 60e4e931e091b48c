"""What CPU time it saves to keep the SLA with the least busy time, rather than to answer at once.

    python -m benchmarks.live.cpu_saved [--quick] [--json] [--model NAME] [--rate 3000]

Two replicas without Ray, with one CPU each, serve the same model on the CPU within 20 ms, each
behind a HAProxy of its own. The policy of one minimizes the mean response time, as `objective:
auto` does for a profile without energy. That of the other keeps the SLA with the least time that
the device is busy (`objective: sla`): batches wait for company as long as the SLA allows. Poisson
arrivals take turns between the two. Reported are quartiles over the rounds: of the CPU time per
answer of the replica (`replica_us`), of HAProxy (`haproxy_us`) and of both (`both_us`), of the
percentiles of the response time, and of the share of requests answered in time.
"""

import click
import numpy as np

from benchmarks.arguments import json_option, quick_option
from benchmarks.live.alternating_loops import (
    Found,
    Run,
    Way,
    show,
    summary,
    take_turns,
    way_to,
    with_costs,
)
from benchmarks.live.bare_replicas import bare_replicas
from benchmarks.peers.light_loop import light_open_loop
from benchmarks.peers.models import HOSTED
from benchmarks.peers.protocols import OpenInference, Workload, example_rows
from loadtests.schedule import Step, poisson_schedule
from sojourn.output import say

MODELS = ("mlp", "digits")
OBJECTIVES = ("auto", "sla")
PERCENTILES = (50, 95, 99)
RUN_S = 5.0
#: How long a replica learns what requests cost it before anything is measured.
WARM_UP_S = 20.0


def open_loop_on(way: Way, model: str, rate_per_s: float, run_s: float = RUN_S) -> Run:
    """Return what sends Poisson arrivals at a rate for `run_s` seconds."""
    workload = Workload(model, OpenInference(), example_rows(model, 256))
    arrivals_s = poisson_schedule([Step(run_s, rate_per_s)], seed=1).arrivals_s
    sla_ms = HOSTED[model].response_time_ms

    def load() -> tuple[float, dict[str, float]]:
        result = light_open_loop(workload, arrivals_s, way.port)
        answered_ms = result.service_ms[result.answered]
        if not answered_ms.size:
            raise click.ClickException(f"{model}: no request was answered")
        percentiles = np.percentile(answered_ms, PERCENTILES).tolist()
        row = {f"p{p}_ms": value for p, value in zip(PERCENTILES, percentiles, strict=True)}
        in_time = np.count_nonzero(answered_ms <= sla_ms) / arrivals_s.size
        return float(answered_ms.size), {**row, "in_time": in_time}

    return lambda: with_costs(way, load)


def measure(model: str, rate_per_s: float, rounds: int) -> Found:
    """Return what each round found, by the objective."""
    served = model, HOSTED[model].import_path
    options = ("--response-time-ms", f"{HOSTED[model].response_time_ms:g}", "--cpus", "1")
    one, other = OBJECTIVES
    with (
        bare_replicas(1, *served, *options, "--objective", one) as before,
        bare_replicas(1, *served, *options, "--objective", other) as after,
    ):
        ways = {one: way_to(before), other: way_to(after)}
        for way in ways.values():
            open_loop_on(way, model, rate_per_s, WARM_UP_S)()
        runs = {name: open_loop_on(way, model, rate_per_s) for name, way in ways.items()}
        return take_turns(runs, rounds)


@click.command()
@quick_option("Three rounds instead of ten.")
@json_option
@click.option("--model", type=click.Choice(MODELS), help="Only this one.")
@click.option(
    "--rate",
    "rate_per_s",
    type=click.FloatRange(min=0, min_open=True),
    default=3000.0,
    show_default=True,
    help="Requests per second.",
)
def main(quick: bool, as_json: bool, model: str | None, rate_per_s: float) -> None:
    """Measure what CPU time the objective `sla` saves."""
    results = {}
    for name in (model,) if model else MODELS:
        say(f"cpu_saved: {name}")
        results[name] = summary(measure(name, rate_per_s, 3 if quick else 10))
    show(results, as_json)


if __name__ == "__main__":
    main()
