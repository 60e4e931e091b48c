"""How many requests a second of one core simulates.

    python -m benchmarks.simulated.simulator_speed [--quick] [--json]

GoogLeNet on a Tesla P4 (Xu et al.'s figures) under 99% within 50 ms, Poisson arrivals at 70% of the
capacity of its replicas. Timed from drawing the arrivals to the finished run, with all that a run
does once a second: for a fixed fleet, and for the autoscaler, which reads the reports of all
replicas. The fastest of a few runs counts; what the first run takes is told apart.
"""

import time
from dataclasses import replace

import click
import numpy as np

from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.arrivals import poisson_counts
from simulator.autoscalers.fixed import FixedFleet
from simulator.autoscalers.sojourn import SojournAutoscaler
from simulator.engines.interface import Routing
from simulator.run import EngineName, Scenario, simulate
from simulator.scaling import ScalingPolicy
from sojourn.output import json_option, print_json, print_table

_SIZES = np.arange(1, 33)
GOOGLENET_P4 = Profile("googlenet", "tesla-p4", 0.3051 * _SIZES + 1.052, 19.90 * _SIZES + 19.60)
USE = 0.7
REPEATS = 3


def fleet(replicas: int, requests: int, routing: Routing = Routing.RANDOM) -> Scenario:
    """Give a fleet at `USE` of its capacity, for about so many requests."""
    rate_per_s = USE * replicas * GOOGLENET_P4.capacity_per_s
    seconds = max(1, round(requests / rate_per_s))
    return Scenario(
        GOOGLENET_P4,
        ServiceLevelObjective(50.0, 99.0),
        poisson_counts(rate_per_s, seconds, np.random.default_rng(0)),
        within_second="uniform",
        replicas=replicas,
        routing=routing,
    )


def requests_per_s(scenario: Scenario, autoscaled: bool, engine: EngineName) -> float:
    """Time the fastest of `REPEATS` runs."""
    scenario.load_lateness_curve()  # solved once for all runs on a profile; no part of simulating
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
@click.option("--quick", is_flag=True, help="A fifth of the requests.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Time both engines."""
    many, few = (1_000_000, 40_000) if quick else (5_000_000, 200_000)
    begin_s = time.perf_counter()
    simulate(fleet(2, 1000), FixedFleet(2))
    first_s = time.perf_counter() - begin_s
    speeds = {
        "compiled": requests_per_s(fleet(12, many), False, "compiled"),
        "compiled_autoscaled": requests_per_s(fleet(12, many), True, "compiled"),
        "compiled_autoscaled_100_replicas": requests_per_s(fleet(100, many), True, "compiled"),
        "compiled_power_of_two": requests_per_s(
            fleet(12, many, Routing.POWER_OF_TWO), False, "compiled"
        ),
        "compiled_least_connections": requests_per_s(
            fleet(12, many, Routing.LEAST_CONNECTIONS), False, "compiled"
        ),
        "live": requests_per_s(fleet(12, few), False, "live"),
        "live_autoscaled": requests_per_s(fleet(12, few), True, "live"),
    }
    # Ten requests a second and no more: what a second itself takes.
    quiet = replace(fleet(12, 1000), counts=np.full(2000 if quick else 10_000, 10.0))
    second_ms = {
        name: 1e4 / requests_per_s(quiet, autoscaled, "compiled")
        for name, autoscaled in (("fixed", False), ("autoscaled", True))
    }
    if as_json:
        print_json({"requests_per_s": speeds, "second_ms": second_ms, "first_run_s": first_s})
        return
    print_table(["engine", "requests/s"], [(name, f"{v:,.0f}") for name, v in speeds.items()])
    print_table(["a quiet second of 12 replicas", "ms"], list(second_ms.items()))
    click.echo(f"first run, with what is compiled or read from the cache: {first_s:.2f} s")


if __name__ == "__main__":
    main()
