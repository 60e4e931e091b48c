"""Results of simulated runs with known numbers, without a simulation."""

import numpy as np

from autoscaler.simulator.reporting.comparison import Comparison
from autoscaler.simulator.results import Run
from policy.objective import ServiceLevelObjective

SLA = ServiceLevelObjective(100, 99)


def run(
    name,
    *,
    seconds=300,
    replicas=4.0,
    late=0.001,
    refused=0.0,
    energy=True,
    forecast=False,
    objective=SLA,
):
    """Return a run with known numbers: 100 requests/s, of which a share of `late` are late."""
    seconds_of = np.ones(seconds)
    edges_ms = np.linspace(0, 200, 201)
    histogram = np.zeros(200)
    histogram[50] = seconds * 100 * (1 - late - refused)
    histogram[150] = seconds * 100 * late
    held = replicas + (np.arange(seconds) % 100 >= 50)
    return Run(
        name=name,
        objective=objective,
        offered=100 * seconds_of,
        in_time=100 * (1 - late - refused) * seconds_of,
        refused=100 * refused * seconds_of,
        ordered=held,
        ready=held,
        paid_replica_s=float(held.sum()),
        forecast_per_s=120 * seconds_of if forecast else np.full(seconds, np.nan),
        energy_j=10 * held if energy else np.full(seconds, np.nan),
        histogram=histogram,
        bin_edges_ms=edges_ms,
    )


def comparison(**more):
    """Return a comparison of two autoscalers and the oracle."""
    oracle = run("oracle", replicas=3, late=0.0, **more)
    runs = (
        run("sojourn", replicas=4, late=0.004, **more),
        run("ray", replicas=2, late=0.2, refused=0.05, **more),
        oracle,
    )
    return Comparison(runs, oracle, {"sojourn": "Sojourn", "ray": "Ray's default"})
