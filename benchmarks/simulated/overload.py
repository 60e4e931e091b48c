"""Measure what an overloaded replica still answers within the SLA.

    python -m benchmarks.simulated.overload [--quick] [--fronts] [--json]

One replica, 99% within the SLA, Poisson arrivals at several multiples of what is possible: the
highest rate at which the SLA can be held, over all limits on the batch size, by the response-time
model. Shown is the rate of answers in time, as a fraction of what is possible. Devices of five
shapes: batch latency in proportion to the batch size, as on a CPU; a steep line; constant; in
steps; and a GPU. Of some, a full batch alone takes longer than the SLA allows. Both engines of the
simulator run the same arrivals (behind a front, the compiled one alone); the live one runs the
batcher core that serves requests.

Of the last four, the front (the event loop) is the bottleneck. Refusing costs it a tenth of what
reading and answering does, so at ten times the rate there is nothing left to answer with. The
balancer does not ask the only replica again, so its five retries change nothing.
"""

from dataclasses import asdict, dataclass

import click
import numpy as np
from rich.progress import track

from autoscaler.simulator.arrivals import WithinSecond, poisson_counts
from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import EngineName, simulate
from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from deployments.config.routing import RETRIES
from policy.errors import InfeasibleError
from policy.front import FrontCosts
from policy.load_lateness import solve_load_lateness_curve
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.try_delays import TryDelays
from sojourn.output import print_json, print_table

ENGINES: tuple[EngineName, ...] = ("compiled", "live")
FACTORS = (1.05, 1.5, 4.0, 10.0)
SIZES = np.arange(1, 33)
FRONT_FACTORS = (1.05, 1.5, 2.0, 4.0, 10.0)
FAST = 0.02 + 0.001 * np.arange(1, 65)


#: Name, batch latency in ms by batch size, and the SLA's response time in ms.
SHAPES = (
    ("in proportion", 0.4 + 7.8 * SIZES, 200.0),
    ("steep line", 20 + 3.0 * np.arange(1, 65), 150.0),
    ("constant", np.full(32, 40.0), 100.0),
    ("steps of 8", 1 + 2.0 * np.ceil(SIZES / 8), 12.0),
    ("GPU", GOOGLENET_P4.latency_ms, 30.0),
    ("GPU, tight SLA", GOOGLENET_P4.latency_ms, 12.0),
)
#: The same, and the front.
FRONT_SHAPES = (
    ("fast model on the loop's CPU", FAST, 20.0, FrontCosts(0.1, 0.15, shares_cpu=True)),
    ("fast model", FAST, 20.0, FrontCosts(0.1, 0.15, shares_cpu=False)),
    ("constant, large requests", np.full(64, 4.0), 100.0, FrontCosts(0.3, 0.2, False)),
    ("GPU, large requests", GOOGLENET_P4.latency_ms, 30.0, FrontCosts(0.6, 0.5, False)),
)


@dataclass(frozen=True)
class Row:
    """A replica at a multiple of what is possible; shares are of the requests offered."""

    shape: str
    bottleneck: str
    response_time_ms: float
    possible_per_s: float
    factor: float
    retries: int
    engine: str
    in_time_of_possible: float
    in_time_share: float
    refused_share: float
    p99_ms: float


def possible_per_s(profile: Profile, at_replica: ServiceLevelObjective) -> float:
    """Return the highest rate at which the SLA can be held, over all limits on the batch size."""
    rates = [0.0]
    sizes = range(1, profile.max_batch_size + 1)
    if profile.front is not None:  # a curve takes seconds, and a front gains by large batches
        sizes = range(profile.max_batch_size // 2, profile.max_batch_size + 1, 16)
    for batch_size in sizes:
        limited = profile.up_to(batch_size)
        full_ms = float(limited.latency_ms[-1])
        room = batch_size * max(1, int(at_replica.response_time_ms / full_ms))
        try:
            curve = solve_load_lateness_curve(limited, at_replica, room, search_sizes=False)
        except InfeasibleError:
            continue
        rates.append(curve.sla_rate_per_s)
    return max(rates)


def measure(
    shape: str,
    profile: Profile,
    sla: ServiceLevelObjective,
    factor: float,
    engine: EngineName,
    possible: float,
    seconds: int,
    retries: int = RETRIES,
) -> Row:
    """Simulate one replica at `factor` times the rate that is possible."""
    rate_per_s = factor * possible
    counts = poisson_counts(rate_per_s, seconds, np.random.default_rng(1)).astype(np.float64)
    scenario = Scenario(
        profile,
        sla,
        counts,
        within_second=WithinSecond.UNIFORM,
        delays=TryDelays(retries=retries),
        max_replicas=1,
    )
    run = simulate(scenario, FixedFleet(1), engine=engine)
    offered = float(run.offered.sum())
    return Row(
        shape,
        run.bottleneck,
        sla.response_time_ms,
        possible,
        factor,
        retries,
        engine,
        float(run.in_time.sum()) / seconds / possible,
        run.service_level,
        float(run.refused.sum()) / offered,
        run.response_percentile_ms(99.0),
    )


@click.command()
@quick_option("Simulate 5 seconds of each case instead of 60.")
@click.option("--fronts", is_flag=True, help="Only devices behind a front.")
@json_option
def main(quick: bool, fronts: bool, as_json: bool) -> None:
    """Measure what an overloaded replica still answers within the SLA."""
    seconds = 5 if quick else 60
    shapes = [*(() if fronts else ((*shape, None) for shape in SHAPES)), *FRONT_SHAPES]
    rows: list[Row] = []
    for name, latency_ms, response_time_ms, front in track(shapes, disable=as_json, transient=True):
        profile = Profile(name, "device", np.asarray(latency_ms, dtype=np.float64), front=front)
        sla = ServiceLevelObjective(response_time_ms, 99.0)
        delays = Scenario(profile, sla, np.ones(1)).delays
        possible = possible_per_s(profile.serial(), sla.after(delays.way_ms))
        rows += [
            measure(name, profile, sla, factor, engine, possible, seconds, retries)
            for factor in (FACTORS if front is None else FRONT_FACTORS)
            for retries in ((RETRIES,) if front is None else (RETRIES, 0))
            for engine in (ENGINES if front is None else ENGINES[:1])
        ]
    if as_json:
        print_json({"rows": [asdict(row) for row in rows]})
        return
    print_table(
        (
            "device",
            "SLA ms",
            "possible/s",
            "load",
            "retries",
            "engine",
            "bottleneck",
            "of possible",
            "in time",
            "refused",
            "p99 ms",
        ),
        [
            (
                row.shape,
                row.response_time_ms,
                f"{row.possible_per_s:,.0f}",
                f"{row.factor:g}x",
                row.retries,
                row.engine,
                row.bottleneck,
                f"{row.in_time_of_possible:.2f}",
                f"{row.in_time_share:.1%}",
                f"{row.refused_share:.1%}",
                f"{row.p99_ms:.4g}",
            )
            for row in rows
        ],
        title=f"Answers in time of an overloaded replica, {seconds} s each",
    )


if __name__ == "__main__":
    main()
