"""Check the computed response-time percentiles against a simulation of ten million requests.

    python -m benchmarks.paper.percentiles [--quick] [--json]

Also reports how far the percentiles are off where batch times vary, how much power a policy chosen
for an SLA saves against the work-conserving one, and how long the computations take. Devices:
GoogLeNet on a Tesla P4, and one whose batches are padded to powers of two.
"""

import time
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import click
import numba
import numpy as np
from scipy.special import gammaincinv

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from policy.baseline_policies import work_conserving
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.latency_quantiles import LatencyQuantiles
from policy.objective import ServiceLevelObjective
from policy.optimization import solve
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.table_solving import solve_table
from sojourn.output import print_json, print_table, say
from tests.support.single_device import simulate

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
PERCENTILE_NAMES = tuple(f"{percentile:g}" for percentile in PERCENTILES)
# Batches are padded to powers of two, so it can pay to leave requests in the queue.
_PADDED = np.array([2.0] * 4 + [2.6] * 4 + [4.0] * 8 + [7.0] * 16)
STEPS = Profile("padded", "steps", _PADDED, 10 * _PADDED)


simulate_compiled = numba.njit()(simulate)


@dataclass(frozen=True)
class Case:
    """A policy at a load; `waiting_room` is in requests, None for any number."""

    name: str
    profile: Profile
    policy: BatchingPolicy
    traffic_intensity: float
    waiting_room: int | None


@dataclass(frozen=True)
class Comparison:
    """Relative errors of the computed figures against the simulated ones.

    The simulation has errors of its own: at high loads long queues persist, so even ten million
    requests are few independent samples. `standard_errors` estimates its relative standard errors
    by comparing ten stretches of the run.
    """

    name: str
    traffic_intensity: float
    waiting_room: int | None
    percentile_errors: dict[str, float]
    standard_errors: dict[str, float]
    simulated_ms: dict[str, float]
    mean_error: float
    power_error: float
    full_probability: float
    full_probability_simulated: float
    evaluate_ms: float


def cases(quick: bool) -> list[Case]:
    """Return the policies and loads to compare."""
    padded = tuple(n if n < 4 else max(s for s in (4, 8, 16) if s <= n) for n in range(17))
    limited = (0,) * 4 + padded[4:]
    policies = [
        ("work-conserving", GOOGLENET_P4, BatchingPolicy.from_control_limit(1, 32)),
        ("limit 8", GOOGLENET_P4, BatchingPolicy.from_control_limit(8, 32)),
        ("limit 8, wait 8 ms", GOOGLENET_P4, BatchingPolicy.from_control_limit(8, 32, 8.0)),
        ("limit 32, wait 5 ms", GOOGLENET_P4, BatchingPolicy.from_control_limit(32, 32, 5.0)),
        ("static 8", GOOGLENET_P4, BatchingPolicy.from_control_limit(8, 8)),
        ("timeout 8, 12 ms", GOOGLENET_P4, BatchingPolicy.from_control_limit(8, 8, 12.0)),
        ("no batching", GOOGLENET_P4, BatchingPolicy.from_control_limit(1, 1)),
        ("powers of two", STEPS, BatchingPolicy(padded)),
        ("powers of two from 4", STEPS, BatchingPolicy(limited)),
        ("powers of two from 4, wait 5 ms", STEPS, BatchingPolicy(limited, 5.0)),
    ]
    loads = (0.1, 0.9) if quick else (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95)
    return [
        Case(name, profile, policy, load, room)
        for name, profile, policy in policies
        for load in loads
        for room in ((40,) if quick else (None, max(8, policy.control_limit), 40))
    ]


def compare(case: Case, requests: int, seed: int) -> Comparison:
    """Evaluate and simulate one case."""
    size = case.policy.max_batch_size
    times = case.profile.latency_ms[:size]
    rate = case.traffic_intensity * size / times[-1]
    wait = case.policy.max_wait_ms
    started = time.perf_counter()
    evaluation = evaluate(case.profile, case.policy, 1e3 * rate, waiting_room=case.waiting_room)
    computed = [evaluation.response_percentile_ms(p) for p in PERCENTILES]
    evaluate_ms = 1e3 * (time.perf_counter() - started)
    response_times, batches, refused, duration_ms = simulate_compiled(
        np.array(case.policy.actions),
        np.inf if wait is None else wait,
        times,
        rate,
        -1 if case.waiting_room is None else case.waiting_room,
        requests,
        seed,
    )
    simulated = np.percentile(response_times, PERCENTILES)
    stretches = np.array([np.percentile(x, PERCENTILES) for x in np.split(response_times, 10)])
    deviations = stretches.std(axis=0, ddof=1) / np.sqrt(10) / simulated
    assert case.profile.energy_mj is not None
    assert evaluation.mean_power_w is not None
    power_w = batches[1:] @ case.profile.energy_mj[:size] / duration_ms
    names = [f"{p:g}" for p in PERCENTILES]
    errors = (float(a / b - 1) for a, b in zip(computed, simulated, strict=True))
    return Comparison(
        name=case.name,
        traffic_intensity=case.traffic_intensity,
        waiting_room=case.waiting_room,
        percentile_errors=dict(zip(names, errors, strict=True)),
        standard_errors=dict(zip(names, deviations.tolist(), strict=True)),
        simulated_ms=dict(zip(names, simulated.tolist(), strict=True)),
        mean_error=float(evaluation.mean_response_ms / response_times.mean() - 1),
        power_error=float(evaluation.mean_power_w / power_w - 1),
        full_probability=evaluation.full_probability,
        full_probability_simulated=float(refused / (refused + requests)),
        evaluate_ms=evaluate_ms,
    )


def savings(loads: tuple[float, ...]) -> list[dict[str, Any]]:
    """Compare the power of the policy chosen for an SLA with that of the work-conserving one."""
    rows: list[dict[str, Any]] = []
    for load in loads:
        rate = load * GOOGLENET_P4.capacity_per_s
        greedy = evaluate(GOOGLENET_P4, work_conserving(GOOGLENET_P4), rate)
        for target_ms in (5.0, 10.0, 20.0):
            started = time.perf_counter()
            chosen = solve(GOOGLENET_P4, rate, ServiceLevelObjective(target_ms, 99))
            solve_ms = 1e3 * (time.perf_counter() - started)
            assert greedy.mean_power_w is not None
            assert chosen.mean_power_w is not None
            rows.append(
                {
                    "traffic_intensity": load,
                    "response_time_ms": target_ms,
                    "meets_sla": chosen.meets_sla,
                    "control_limit": chosen.policy.control_limit,
                    "max_wait_ms": chosen.policy.max_wait_ms,
                    "p99_ms": chosen.percentile_ms,
                    "power_w": chosen.mean_power_w,
                    "work_conserving_p99_ms": greedy.response_percentile_ms(99),
                    "work_conserving_power_w": greedy.mean_power_w,
                    "saved": 1 - chosen.mean_power_w / greedy.mean_power_w,
                    "solve_ms": solve_ms,
                }
            )
    return rows


def random_batch_times(
    requests: int, variations: tuple[float, ...], loads: tuple[float, ...]
) -> list[dict[str, Any]]:
    """Compare computed percentiles with simulated ones where batch times vary.

    The batch times are gamma distributed. The percentiles are computed from the mean times alone,
    and also from five quantiles. Returns the relative errors per percentile.
    """
    rows: list[dict[str, Any]] = []
    times = GOOGLENET_P4.latency_ms
    policies = {
        "work-conserving": BatchingPolicy.from_control_limit(1, 32),
        "limit 8, wait 8 ms": BatchingPolicy.from_control_limit(8, 32, 8.0),
    }
    for (name, policy), variation, load in product(policies.items(), variations, loads):
        rate = load * 32 / times[-1]
        # The tail of a long queue is a rare event: a high load needs more requests.
        stretches = 10 if load == 0.9 else 2
        wait_ms = np.inf if policy.max_wait_ms is None else policy.max_wait_ms
        simulated = np.array(
            [
                np.percentile(
                    simulate_compiled(
                        np.array(policy.actions),
                        wait_ms,
                        times,
                        rate,
                        -1,
                        requests,
                        seed,
                        variation,
                    )[0],
                    PERCENTILES,
                )
                for seed in range(1, stretches + 1)
            ]
        )
        simulated_ms = simulated.mean(axis=0)
        deviations = simulated.std(axis=0, ddof=1) / np.sqrt(stretches) / simulated_ms
        row = {"policy": name, "variation": variation, "traffic_intensity": load}
        row["standard_errors"] = dict(zip(PERCENTILE_NAMES, deviations.tolist(), strict=True))
        quantiles = gamma_quantiles(variation, times.size)
        for key, profile in (
            ("constant", GOOGLENET_P4),
            ("varying", replace(GOOGLENET_P4, latency_quantiles=quantiles)),
        ):
            started = time.perf_counter()
            evaluation = evaluate(profile, policy, 1e3 * rate)
            computed_ms = [evaluation.response_percentile_ms(p) for p in PERCENTILES]
            row[f"{key}_evaluate_ms"] = 1e3 * (time.perf_counter() - started)
            errors = (np.array(computed_ms) / simulated_ms - 1).tolist()
            row[f"{key}_errors"] = dict(zip(PERCENTILE_NAMES, errors, strict=True))
        rows.append(row)
    return rows


def gamma_quantiles(variation: float, max_batch_size: int) -> LatencyQuantiles:
    """Return five quantiles of a gamma distribution of mean 1, the same for all batch sizes."""
    percentiles = np.array([1.0, 10.0, 50.0, 90.0, 99.0])
    ratios = gammaincinv(variation**-2, percentiles / 100) * variation**2
    return LatencyQuantiles(percentiles, np.tile(ratios[:, None], max_batch_size))


def timings() -> dict[str, float]:
    """Time one evaluation, and solving a table of 64 arrival rates for an SLA."""
    policy = BatchingPolicy.from_control_limit(8, 32, 8.0)
    spent = []
    for load in (0.1, 0.5, 0.9):
        for _ in range(10):
            started = time.perf_counter()
            evaluation = evaluate(GOOGLENET_P4, policy, load * GOOGLENET_P4.capacity_per_s)
            evaluation.response_percentile_ms(99)
            spent.append(time.perf_counter() - started)
    started = time.perf_counter()
    solve_table(GOOGLENET_P4, ServiceLevelObjective(20.0, 99))
    return {
        "percentile_ms_median": 1e3 * float(np.median(spent)),
        "percentile_ms_largest": 1e3 * max(spent),
        "sla_64_rates_s": time.perf_counter() - started,
    }


def print_comparisons(compared: list[Comparison]) -> None:
    """Print the relative errors of every case, and the largest of each percentile."""
    # A rich table of so many columns would be cut off in most terminals.
    print("Relative errors against the simulation, in percent; probability of a full waiting room")
    heads = "".join(f"{f'p{p:g}':>8}" for p in PERCENTILES)
    print(
        f"{'policy':<32}{'load':>5}{'room':>6}{heads}{'mean':>8}{'power':>8}{'full':>9}{'sim.':>9}"
    )
    for row in compared:
        room = "-" if row.waiting_room is None else str(row.waiting_room)
        cells = "".join(f"{100 * error:8.3f}" for error in row.percentile_errors.values())
        print(
            f"{row.name:<32}{row.traffic_intensity:5.2f}{room:>6}{cells}"
            f"{100 * row.mean_error:8.3f}{100 * row.power_error:8.3f}"
            f"{row.full_probability:9.5f}{row.full_probability_simulated:9.5f}"
        )
    for name in (f"{p:g}" for p in PERCENTILES):
        for sharp, title in ((False, "largest"), (True, "where its standard error is below 0.1%")):
            rows = [row for row in compared if not sharp or row.standard_errors[name] < 1e-3]
            worst = max(rows, key=lambda row: abs(row.percentile_errors[name]))
            room = "no limit" if worst.waiting_room is None else f"room {worst.waiting_room}"
            print(
                f"p{name}, {title}: {100 * worst.percentile_errors[name]:+.3f}%, the simulation's "
                f"standard error {100 * worst.standard_errors[name]:.3f}% ({worst.name}, load "
                f"{worst.traffic_intensity:g}, {room})"
            )


def print_variations(varied: list[dict[str, Any]]) -> None:
    """Print the errors of percentiles computed without and with the variation of batch times."""
    shown = ("50", "95", "99", "99.9")
    print_table(
        ("policy", "variation", "load", *(f"p{name}" for name in shown), "ms"),
        [
            (
                row["policy"],
                f"{row['variation']:g}",
                row["traffic_intensity"],
                *(
                    f"{100 * row['constant_errors'][name]:.1f} -> "
                    f"{100 * row['varying_errors'][name]:.2f} "
                    f"({100 * row['standard_errors'][name]:.2f})"
                    for name in shown
                ),
                f"{row['constant_evaluate_ms']:.0f} -> {row['varying_evaluate_ms']:.0f}",
            )
            for row in varied
        ],
        title="Varying batch times: errors in % of computing with their means -> with their "
        "quantiles (the simulation's standard error)",
    )


def print_savings(saved: list[dict[str, Any]]) -> None:
    """Print the least power under each SLA beside the work-conserving policy's."""
    print_table(
        ("load", "SLA ms", "limit", "wait ms", "p99 ms", "W", "p99 ms", "W", "saved"),
        [
            (
                row["traffic_intensity"],
                row["response_time_ms"],
                row["control_limit"],
                "-" if row["max_wait_ms"] is None else f"{row['max_wait_ms']:.2f}",
                f"{row['p99_ms']:.2f}",
                f"{row['power_w']:.2f}",
                f"{row['work_conserving_p99_ms']:.2f}",
                f"{row['work_conserving_power_w']:.2f}",
                f"{100 * row['saved']:.1f}%" if row["meets_sla"] else "SLA cannot be met",
            )
            for row in saved
        ],
        title="Least power under an SLA on p99, and (right) starting whenever free",
    )


@click.command()
@quick_option("Fewer cases, and 100,000 requests each.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Check the computed response-time percentiles against a simulation."""
    requests = 100_000 if quick else 10_000_000
    compared = []
    for seed, case in enumerate(cases(quick)):
        try:
            compared.append(compare(case, requests, seed))
        except InfeasibleError as error:
            say(f"{case.name}: {error}")
    variations: tuple[float, ...] = (0.2,) if quick else (0.02, 0.1, 0.2, 0.3)
    loads: tuple[float, ...] = (0.1, 0.5) if quick else (0.1, 0.5, 0.9)
    varied = random_batch_times(requests, variations, loads)
    saved = savings((0.3, 0.7) if quick else (0.1, 0.3, 0.5, 0.7, 0.9))
    times = timings()
    if as_json:
        print_json(
            {
                "requests": requests,
                "comparisons": [asdict(row) for row in compared],
                "random_batch_times": varied,
                "savings": saved,
                "timings": times,
            }
        )
        return
    print(f"{requests:,} simulated requests per case")
    print_comparisons(compared)
    print_variations(varied)
    print_savings(saved)
    for name, value in times.items():
        print(f"{name}: {value:.3g}")


if __name__ == "__main__":
    main()
