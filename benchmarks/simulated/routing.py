"""Does sizing for random routing hold under routings that look at the load? It must.

    python -m benchmarks.simulated.routing [--quick] [--json]

GoogLeNet on a P4 with the policy table of a live replica. A fleet gets Poisson arrivals at half and
at all of the highest rate for which the live autoscaler would leave it at so many replicas, under
HAProxy's three routings. The share in time must be no less than the SLA's; what it is above that,
at the full rate, is what sizing by the routing could save.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.progress import track

from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.arrivals import WithinSecond, poisson_counts
from simulator.autoscalers.fixed import FixedFleet
from simulator.engines.interface import Routing
from simulator.run import Scenario, simulate
from sojourn.output import json_option, print_json, print_table

PROFILE = Path(__file__).parents[2] / "configs/profiles/googlenet-p4.json"
#: Response time of the SLA in full batches, percentile, replicas, share of the highest rate.
CASES = [
    (batches, percentile, replicas, share)
    for batches in (2.5, 4.5)
    for percentile in (95.0, 99.0)
    for replicas in (2, 5, 20)
    for share in (0.5, 1.0)
]


@dataclass(frozen=True)
class Row:
    """One fleet at one load."""

    response_time_ms: float
    percentile: float
    replicas: int
    arrival_rate_per_s: float
    service_level: dict[str, float]
    percentile_ms: dict[str, float]


def measure(
    profile: Profile, batches: float, percentile: float, replicas: int, share: float, seconds: int
) -> Row:
    """Simulate one case under each routing, with the same arrivals."""
    response_time_ms = round(batches * float(profile.latency_ms[-1]), 1)
    objective = ServiceLevelObjective(response_time_ms, percentile)
    curve = Scenario(profile, objective, np.ones(1)).load_lateness_curve()
    assert curve is not None
    rate_per_s = share * replicas * curve.sla_rate_per_s
    counts = poisson_counts(rate_per_s, seconds, np.random.default_rng(1)).astype(np.float64)
    runs = {
        str(routing): simulate(
            Scenario(
                profile,
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
@click.option("--quick", is_flag=True, help="Twenty seconds of each case.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Compare routings at the autoscaler's own size of fleet."""
    profile = Profile.load(PROFILE)
    seconds = 20 if quick else 300
    rows = [
        measure(profile, *case, seconds) for case in track(CASES, disable=as_json, transient=True)
    ]
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
        title=f"{profile.model} on a {profile.device}, {seconds} s each",
    )


if __name__ == "__main__":
    main()
