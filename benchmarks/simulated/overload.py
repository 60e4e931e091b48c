"""Measure what an overloaded replica still answers within the SLA.

    python -m benchmarks.simulated.overload [--quick] [--json]

One replica, 99% within the SLA, Poisson arrivals at several multiples of what is possible: the
highest rate at which the SLA can be held, over all limits on the batch size, by the response-time
model. Shown is the rate of answers in time, as a fraction of what is possible. Devices of five
shapes: batch latency in proportion to the batch size, as on a CPU; a steep line; constant; in
steps; and a GPU. Of some, a full batch alone takes longer than the SLA allows. Both engines of the
simulator run the same arrivals; the live one runs the batcher core that serves requests.
"""

from dataclasses import asdict, dataclass

import click
import numpy as np
from rich.progress import track

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from policy.errors import InfeasibleError
from policy.load_lateness import solve_load_lateness_curve
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.arrivals import WithinSecond, poisson_counts
from simulator.autoscalers.fixed import FixedFleet
from simulator.scenario import Scenario
from simulator.simulation import EngineName, simulate
from sojourn.output import print_json, print_table

ENGINES: tuple[EngineName, ...] = ("compiled", "live")
FACTORS = (1.05, 1.5, 4.0, 10.0)
SIZES = np.arange(1, 33)
#: Name, batch latency in ms by batch size, and the SLA's response time in ms.
SHAPES = (
    ("in proportion", 0.4 + 7.8 * SIZES, 200.0),
    ("steep line", 20 + 3.0 * np.arange(1, 65), 150.0),
    ("constant", np.full(32, 40.0), 100.0),
    ("steps of 8", 1 + 2.0 * np.ceil(SIZES / 8), 12.0),
    ("GPU", GOOGLENET_P4.latency_ms, 30.0),
    ("GPU, tight SLA", GOOGLENET_P4.latency_ms, 12.0),
)


@dataclass(frozen=True)
class Row:
    """A replica at a multiple of what is possible; shares are of the requests offered."""

    shape: str
    response_time_ms: float
    possible_per_s: float
    factor: float
    engine: str
    in_time_of_possible: float
    in_time_share: float
    refused_share: float
    p99_ms: float


def possible_per_s(profile: Profile, at_replica: ServiceLevelObjective) -> float:
    """Return the highest rate at which the SLA can be held, over all limits on the batch size."""
    rates = [0.0]
    for batch_size in range(1, profile.max_batch_size + 1):
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
) -> Row:
    """Simulate one replica at `factor` times the rate that is possible."""
    rate_per_s = factor * possible
    counts = poisson_counts(rate_per_s, seconds, np.random.default_rng(1)).astype(np.float64)
    scenario = Scenario(profile, sla, counts, within_second=WithinSecond.UNIFORM, max_replicas=1)
    run = simulate(scenario, FixedFleet(1), engine=engine)
    offered = float(run.offered.sum())
    return Row(
        shape,
        sla.response_time_ms,
        possible,
        factor,
        engine,
        float(run.in_time.sum()) / seconds / possible,
        run.service_level,
        float(run.refused.sum()) / offered,
        run.response_percentile_ms(99.0),
    )


@click.command()
@quick_option("Simulate 5 seconds of each case instead of 60.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure what an overloaded replica still answers within the SLA."""
    seconds = 5 if quick else 60
    cases = [(shape, factor) for shape in SHAPES for factor in FACTORS]
    rows: list[Row] = []
    possible: dict[str, float] = {}
    for (name, latency_ms, response_time_ms), factor in track(
        cases, disable=as_json, transient=True
    ):
        profile = Profile(name, "device", np.asarray(latency_ms, dtype=np.float64))
        sla = ServiceLevelObjective(response_time_ms, 99.0)
        if name not in possible:
            delays = Scenario(profile, sla, np.ones(1)).delays
            possible[name] = possible_per_s(profile, sla.after(delays.way_ms))
        rows += [
            measure(name, profile, sla, factor, engine, possible[name], seconds)
            for engine in ENGINES
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
            "engine",
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
                row.engine,
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
