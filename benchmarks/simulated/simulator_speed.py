"""Measure how many requests per second the simulator handles on one core.

    python -m benchmarks.simulated.simulator_speed [--quick] [--json]

The fleet is GoogLeNet on Tesla P4s under an SLA of 99% within 50 ms, with Poisson arrivals at 70%
of its capacity. Runs are timed from drawing the arrivals to the finished result, including the
work of each simulated second: for a fixed fleet, and for the autoscaler, which reads the reports of
all replicas. The fastest of three runs counts. The very first run, which compiles the engine or
reads it from the cache, is reported separately.
"""

import time

import click
import numpy as np

from autoscaler.simulator.arrivals import WithinSecond, poisson_counts
from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
from autoscaler.simulator.engines.interface import Routing
from autoscaler.simulator.scaling import ScalingPolicy
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import EngineName, simulate
from benchmarks.arguments import json_option, print_result, quick_option
from benchmarks.inputs import GOOGLENET_P4
from policy.objective import ServiceLevelObjective

LOAD = 0.7
REPEATS = 3


def fleet(replicas: int, requests: int) -> Scenario:
    """Return a fleet at `LOAD` of its capacity that receives about `requests` requests."""
    rate_per_s = LOAD * replicas * GOOGLENET_P4.capacity_per_s
    seconds = max(1, round(requests / rate_per_s))
    return Scenario(
        GOOGLENET_P4,
        ServiceLevelObjective(50.0, 99.0),
        poisson_counts(rate_per_s, seconds, np.random.default_rng(0)).astype(np.float64),
        within_second=WithinSecond.UNIFORM,
        replicas=replicas,
        routing=Routing.RANDOM,
    )


def requests_per_s(scenario: Scenario, autoscaled: bool, engine: EngineName) -> float:
    """Return the requests per second of wall-clock time in the fastest of `REPEATS` runs."""
    scenario.load_lateness_curve()  # solved once per profile and cached: not part of simulating
    fastest_s = np.inf
    for _ in range(REPEATS):
        autoscaler: ScalingPolicy = FixedFleet(scenario.replicas)
        if autoscaled:
            autoscaler = SojournAutoscaler(max_replicas=10 * scenario.replicas)
        begin_s = time.perf_counter()
        run = simulate(scenario, autoscaler, engine=engine)
        fastest_s = min(fastest_s, time.perf_counter() - begin_s)
    return float(run.offered.sum() / fastest_s)


@click.command()
@quick_option("A fifth of the requests.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure how many requests per second both engines handle on one core."""
    many, few = (1_000_000, 40_000) if quick else (5_000_000, 200_000)
    begin_s = time.perf_counter()
    simulate(fleet(2, 1000), FixedFleet(2))
    first_s = time.perf_counter() - begin_s
    speeds = {
        "compiled": requests_per_s(fleet(12, many), False, "compiled"),
        "compiled_autoscaled": requests_per_s(fleet(12, many), True, "compiled"),
        "compiled_autoscaled_100_replicas": requests_per_s(fleet(100, many), True, "compiled"),
        "live": requests_per_s(fleet(12, few), False, "live"),
        "live_autoscaled": requests_per_s(fleet(12, few), True, "live"),
    }
    print_result({"requests_per_s": speeds, "first_run_s": first_s}, as_json)


if __name__ == "__main__":
    main()
