"""Overload a live replica, and compare what clients see with what the replica says of itself.

    python -m benchmarks.live.overload [--quick] [--json]

Devices of six shapes (batch latency in proportion to the batch size, as on a CPU; a steep line;
constant; in steps; a GPU, also under a tight SLA) are emulated and slowed down (SLA and all) until
10 times what is possible is at most 1,000 requests per second, so that clients, HAProxy and the
replica share two cores without being the bottleneck. For each device `sojourn serve` runs one
replica, and Poisson arrivals come at 1.05, 1.5, 4 and 10 times what is possible. Clients count from
when each request was due. HAProxy tries a refused request up to five more times.
"""

from contextlib import suppress
from typing import Any

import click
import numpy as np

from benchmarks.arguments import json_option, print_result, quick_option
from benchmarks.inputs import GOOGLENET_P4
from benchmarks.local_service import running_service, service_document
from benchmarks.peers.open_loop import open_loop
from benchmarks.peers.protocols import OpenInference, Workload, example_rows
from deployments.local.urls import get_json
from loadtests.records import LOST, REFUSED
from loadtests.schedule import Step, poisson_schedule
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.solvers.load_lateness import solve_load_lateness_curve
from policy.try_delays import TryDelays
from sojourn.output import say

PORT = 8126
MAX_POSSIBLE_PER_S = 100.0
PERCENTILE = 99.0
FACTORS = (1.05, 1.5, 4.0, 10.0)
_SIZES = np.arange(1, 33)
#: Name, batch latency in ms by batch size, and the SLA's response time in ms.
SHAPES = (
    ("in proportion", 0.4 + 7.8 * _SIZES, 200.0),
    ("steep line", 20 + 3.0 * np.arange(1, 65), 150.0),
    ("constant", np.full(32, 40.0), 100.0),
    ("steps of 8", 1 + 2.0 * np.ceil(_SIZES / 8), 12.0),
    ("GPU", GOOGLENET_P4.latency_ms, 30.0),
    ("GPU, tight SLA", GOOGLENET_P4.latency_ms, 12.0),
)


def possible_per_s(profile: Profile, at_replica: ServiceLevelObjective) -> float:
    """Return the highest rate at which the SLA can be held, over all limits on the batch size."""
    rates = [0.0]
    for batch_size in range(1, profile.max_batch_size + 1):
        limited = profile.up_to(batch_size)
        full_ms = float(limited.latency_ms[-1])
        room = batch_size * max(1, int(at_replica.response_time_ms / full_ms))
        with suppress(InfeasibleError):
            curve = solve_load_lateness_curve(limited, at_replica, room, search_sizes=False)
            rates.append(curve.sla_rate_per_s)
    return max(rates)


def config_of(profile: Profile, sla: ServiceLevelObjective) -> dict[str, Any]:
    """Return the config of one replica with an emulated device."""
    model = {
        "name": "emulated",
        "import_path": "deployments.models.emulated:Emulated",
        "max_batch_size": profile.max_batch_size,
        "options": {"profile": profile.to_dict()},
    }
    goal = {"response_time_ms": sla.response_time_ms, "percentile": sla.percentile}
    return service_document(model, {"sla": goal}, PORT)


def measure(
    shape: str, sla: ServiceLevelObjective, possible: float, factor: float, run_s: float, url: str
) -> dict[str, Any]:
    """Offer the running service `factor` times the rate that is possible."""
    workload = Workload("emulated", OpenInference(), example_rows("emulated", 4096))
    rate_per_s = factor * possible
    arrivals_s = poisson_schedule([Step(run_s, rate_per_s)], seed=1).arrivals_s
    before = get_json(f"{url}/sojourn/policy")["rows"]
    run = open_loop(workload, arrivals_s, PORT, connections=1024)
    after = get_json(f"{url}/sojourn/policy")["rows"]
    outcome = run.outcome
    good = run.in_time(sla.response_time_ms)
    answered = run.answered
    response_ms = run.response_ms[answered]
    p50_ms, p99_ms = (
        np.percentile(response_ms, (50, 99)).tolist() if response_ms.size else (np.nan, np.nan)
    )
    completed = after["completed"] - before["completed"]
    return {
        "shape": shape,
        "response_time_ms": sla.response_time_ms,
        "possible_per_s": possible,
        "factor": factor,
        "in_time_of_possible": float(good.sum()) / run_s / possible,
        "in_time_share": float(good.mean()),
        "refused_share": float(np.isin(outcome, REFUSED).mean()),
        "late_share": float((answered & ~good).mean()),
        "replica_late_share": (after["late"] - before["late"]) / max(1, completed),
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "lost": int(np.isin(outcome, LOST).sum()),
    }


def measure_shape(
    shape: str, latency_ms: np.ndarray[Any, Any], response_time_ms: float, run_s: float
) -> list[dict[str, Any]]:
    """Serve one device, and overload it by every factor."""
    profile = Profile(shape, "device", np.asarray(latency_ms, dtype=np.float64))
    sla = ServiceLevelObjective(response_time_ms, PERCENTILE)
    round_trip_ms = TryDelays().round_trip_ms
    possible = possible_per_s(profile, sla.after(round_trip_ms))
    slower = max(1.0, possible / MAX_POSSIBLE_PER_S)
    profile = Profile(shape, "device", np.asarray(slower * latency_ms, dtype=np.float64))
    sla = ServiceLevelObjective(slower * response_time_ms, PERCENTILE)
    possible = possible_per_s(profile, sla.after(round_trip_ms))
    rows = []
    with running_service(config_of(profile, sla), PORT) as service:
        for factor in FACTORS:
            rows.append(measure(shape, sla, possible, factor, run_s, service.url))
            say(f"overload: {shape}, {factor:g}x: {rows[-1]['in_time_of_possible']:.2f}")
    return rows


@click.command()
@quick_option("Load each case for 4 s instead of 20.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Overload a live replica of each shape of device."""
    run_s = 4.0 if quick else 20.0
    rows = [
        row
        for shape, latency_ms, response_time_ms in SHAPES
        for row in measure_shape(shape, latency_ms, response_time_ms, run_s)
    ]
    print_result({"rows": rows}, as_json)


if __name__ == "__main__":
    main()
