"""Check that fleets sized for random routing also meet their SLA under load-aware routing.

    python -m benchmarks.simulated.routing [--quick] [--json]

The replicas are GoogLeNet on a P4 with the policy table of a live replica. Each fleet receives
Poisson arrivals at the highest rate that the live autoscaler would give it, and at half that rate,
under each of HAProxy's three routings. The service level must be at least the SLA's. Where it is
higher at the full rate, sizing by the routing in use could save replicas.
"""

from dataclasses import asdict, dataclass

import click
import numpy as np
from rich.progress import track

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from policy.objective import ServiceLevelObjective
from simulator.arrivals import WithinSecond, poisson_counts
from simulator.autoscalers.fixed import FixedFleet
from simulator.engines.interface import Routing
from simulator.scenario import Scenario
from simulator.simulation import simulate
from sojourn.output import print_json, print_table

#: The SLA's response time in full batches, its percentile, replicas, fraction of the highest rate.
CASES = [
    (batches, percentile, replicas, share)
    for batches in (2.5, 4.5)
    for percentile in (95.0, 99.0)
    for replicas in (2, 5, 20)
    for share in (0.5, 1.0)
]


@dataclass(frozen=True)
class Row:
    """One fleet at one load; the service level and the SLA's percentile are by routing."""

    response_time_ms: float
    percentile: float
    replicas: int
    arrival_rate_per_s: float
    service_level: dict[str, float]
    percentile_ms: dict[str, float]


def measure(batches: float, percentile: float, replicas: int, share: float, seconds: int) -> Row:
    """Simulate one case under each routing, with the same arrivals."""
    response_time_ms = round(batches * float(GOOGLENET_P4.latency_ms[-1]), 1)
    objective = ServiceLevelObjective(response_time_ms, percentile)
    curve = Scenario(GOOGLENET_P4, objective, np.ones(1)).load_lateness_curve()
    assert curve is not None
    rate_per_s = share * replicas * curve.sla_rate_per_s
    counts = poisson_counts(rate_per_s, seconds, np.random.default_rng(1)).astype(np.float64)
    runs = {
        str(routing): simulate(
            Scenario(
                GOOGLENET_P4,
                objective,
                counts,
                within_second=WithinSecond.UNIFORM,
                routing=routing,
                replicas=replicas,
                max_replicas=replicas,
            ),
            FixedFleet(replicas),
        )
        for routing in Routing
    }
    return Row(
        response_time_ms,
        percentile,
        replicas,
        rate_per_s,
        {name: run.service_level for name, run in runs.items()},
        {name: run.response_percentile_ms(percentile) for name, run in runs.items()},
    )


@click.command()
@quick_option("Simulate 20 seconds of each case instead of 300.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Check fleets sized for random routing under load-aware routing."""
    seconds = 20 if quick else 300
    rows = [measure(*case, seconds) for case in track(CASES, disable=as_json, transient=True)]
    if as_json:
        print_json({"rows": [asdict(row) for row in rows]})
        return
    print_table(
        ("SLA", "replicas", "requests/s", *(f"in time, {routing}" for routing in Routing)),
        [
            (
                f"{row.percentile:g}% in {row.response_time_ms:g} ms",
                row.replicas,
                f"{row.arrival_rate_per_s:,.0f}",
                *(f"{100 * row.service_level[str(routing)]:.2f}%" for routing in Routing),
            )
            for row in rows
        ],
        title=f"{GOOGLENET_P4.model} on a {GOOGLENET_P4.device}, {seconds} s each",
    )


if __name__ == "__main__":
    main()
