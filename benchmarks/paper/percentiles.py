"""Percentiles of batching policies: computed, and beside them a simulation of ten million requests.

Then the power that a policy saves which is chosen for an SLA, beside the work-conserving one, for
GoogLeNet on a Tesla P4 (Xu et al.'s figures)::

    python -m benchmarks.paper.percentiles [--quick] [--json]

Needs numba; without it, `--quick` takes minutes.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from policy.baseline_policies import work_conserving
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.solvers.constrained import solve_constrained
from policy.table import solve_table

FloatArray = NDArray[np.float64]

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
_SIZES = np.arange(1, 33)
GOOGLENET_P4 = Profile("googlenet", "tesla-p4", 0.3051 * _SIZES + 1.052, 19.90 * _SIZES + 19.60)
# Batches are padded to powers of two, so that it pays to leave requests behind.
_PADDED = np.array([2.0] * 4 + [2.6] * 4 + [4.0] * 8 + [7.0] * 16)
STEPS = Profile("padded", "steps", _PADDED, 10 * _PADDED)


def simulate(
    actions: NDArray[np.int64],
    max_wait_ms: float,
    batch_times_ms: FloatArray,
    arrival_rate: float,
    waiting_room: int,
    requests: int,
    seed: int,
    variation: float = 0.0,
) -> tuple[FloatArray, NDArray[np.int64], int, float]:
    """Simulate one device, event by event.

    Written in the part of Python that numba compiles.

    Parameters
    ----------
    actions : ndarray of int
        Batch size to start, by queue length; the last entry holds for all beyond.
    max_wait_ms : float
        Age of the oldest request at which a free device starts in any case; infinite: never.
    batch_times_ms : ndarray of float
        By batch size, from 1.
    arrival_rate : float
        Poisson arrivals per millisecond.
    waiting_room : int
        Requests that may wait; -1: any number.
    requests : int
        Requests to serve.
    seed : int
        Of the random numbers.
    variation : float
        Coefficient of variation of batch times that follow a gamma distribution; 0: fixed ones.

    Returns
    -------
    response_times_ms : ndarray of float, shape (requests,)
    batches : ndarray of int
        Number of batches by size, from 0.
    refused : int
        Requests that found no room.
    duration_ms : float
    """
    np.random.seed(seed)
    last = actions.size - 1
    largest = actions[last]
    response_times = np.empty(requests)
    batches = np.zeros(largest + 1, np.int64)
    ring = 1 << 20
    arrivals = np.empty(ring)
    head = tail = served = refused = 0
    now = 0.0
    following = np.random.exponential(1 / arrival_rate)
    while served < requests:
        size = actions[min(tail - head, last)]
        while size == 0:
            due = np.inf
            if tail > head:
                due = arrivals[head % ring] + max_wait_ms
            if due <= max(now, following):
                now = max(now, due)
                size = min(tail - head, largest)
                break
            now = following
            following = now + np.random.exponential(1 / arrival_rate)
            size = actions[min(tail - head + 1, last)]
            if waiting_room >= 0 and tail - head >= waiting_room and size == 0:
                refused += 1
            else:
                arrivals[tail % ring] = now
                tail += 1
        end = now + batch_times_ms[size - 1]
        if variation > 0:
            shape = 1 / variation**2
            end = now + np.random.gamma(shape, batch_times_ms[size - 1] / shape)
        batches[size] += 1
        for _ in range(size):
            if served < requests:
                response_times[served] = end - arrivals[head % ring]
                served += 1
            head += 1
        while following <= end:
            if waiting_room >= 0 and tail - head >= waiting_room:
                refused += 1
            else:
                arrivals[tail % ring] = following
                tail += 1
            following += np.random.exponential(1 / arrival_rate)
        now = end
    return response_times, batches, refused, now


@dataclass(frozen=True)
class Case:
    """A policy at a load."""

    name: str
    profile: Profile
    policy: BatchingPolicy
    traffic_intensity: float
    waiting_room: int | None


@dataclass(frozen=True)
class Comparison:
    """Relative errors of what is computed against what is simulated.

    The simulation has errors of its own: at high loads a long queue lasts, so that ten million
    requests are few. Its relative standard errors come from ten stretches of it.
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
    """List the policies and loads to compare."""
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
        for room in (None, max(8, policy.control_limit), 40)
    ]


def compare(case: Case, requests: int, simulation: object, seed: int) -> Comparison:
    """Evaluate and simulate one case."""
    size = case.policy.max_batch_size
    times = case.profile.latency_ms[:size]
    rate = case.traffic_intensity * size / times[-1]
    wait = case.policy.max_wait_ms
    started = time.perf_counter()
    evaluation = evaluate(case.profile, case.policy, 1e3 * rate, waiting_room=case.waiting_room)
    computed = [evaluation.response_percentile_ms(p) for p in PERCENTILES]
    evaluate_ms = 1e3 * (time.perf_counter() - started)
    assert callable(simulation)
    response_times, batches, refused, duration_ms = simulation(
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


def savings() -> list[dict[str, object]]:
    """Power of the policy chosen for an SLA, beside the work-conserving policy."""
    rows: list[dict[str, object]] = []
    for load in (0.1, 0.3, 0.5, 0.7, 0.9):
        rate = load * GOOGLENET_P4.capacity_per_s
        greedy = evaluate(GOOGLENET_P4, work_conserving(GOOGLENET_P4), rate)
        for target_ms in (5.0, 10.0, 20.0):
            started = time.perf_counter()
            chosen = solve_constrained(
                GOOGLENET_P4, rate, response_time_ms=target_ms, percentile=99
            )
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


def random_batch_times(requests: int, simulation: object) -> list[dict[str, float]]:
    """Percentiles where batch times vary, beside those computed for their means."""
    assert callable(simulation)
    rows = []
    policy = BatchingPolicy.from_control_limit(8, 32, 8.0)
    times = GOOGLENET_P4.latency_ms
    for variation in (0.02, 0.05, 0.1, 0.2):
        for load in (0.1, 0.5, 0.9):
            rate = load * 32 / times[-1]
            evaluation = evaluate(GOOGLENET_P4, policy, 1e3 * rate)
            response_times = simulation(
                np.array(policy.actions), 8.0, times, rate, -1, requests, 1, variation
            )[0]
            simulated = np.percentile(response_times, PERCENTILES)
            row = {"variation": variation, "traffic_intensity": load}
            for percentile, simulated_ms in zip(PERCENTILES, simulated, strict=True):
                computed_ms = evaluation.response_percentile_ms(percentile)
                row[f"p{percentile:g}"] = float(computed_ms / simulated_ms - 1)
            rows.append(row)
    return rows


def timings() -> dict[str, float]:
    """Time of one evaluation, and of a grid of 64 arrival rates under an SLA."""
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


def main() -> None:
    """Run all, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer loads, 300,000 requests each")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    requests = 300_000 if options.quick else 10_000_000
    try:
        import numba

        simulation = numba.njit(simulate)
    except ImportError:
        print("numba is missing: the simulation will be slow", file=sys.stderr)
        simulation = simulate
    compared = []
    for seed, case in enumerate(cases(options.quick)):
        try:
            compared.append(compare(case, requests, simulation, seed))
        except InfeasibleError as error:
            print(f"{case.name}: {error}", file=sys.stderr)
    varied = random_batch_times(requests, simulation)
    saved, times = savings(), timings()
    if options.json:
        content = {
            "requests": requests,
            "comparisons": [asdict(row) for row in compared],
            "random_batch_times": varied,
            "savings": saved,
            "timings": times,
        }
        print(json.dumps(content, indent=1))
        return
    print(f"relative errors against {requests:,} simulated requests, in percent")
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
            row = max(rows, key=lambda row: abs(row.percentile_errors[name]))
            room = "no limit" if row.waiting_room is None else f"room {row.waiting_room}"
            print(
                f"p{name}, {title}: {100 * row.percentile_errors[name]:+.3f}%, the simulation's "
                f"standard error {100 * row.standard_errors[name]:.3f}% ({row.name}, load "
                f"{row.traffic_intensity:g}, {room})"
            )
    print(
        "\nbatch times that vary (limit 8, wait 8 ms): errors of what their means give, in percent"
    )
    print(f"{'variation':<10}{'load':>5}{heads}")
    for varying in varied:
        cells = "".join(f"{100 * varying[f'p{p:g}']:8.2f}" for p in PERCENTILES)
        print(f"{varying['variation']:<10}{varying['traffic_intensity']:5.1f}{cells}")
    print("\nleast power under an SLA on p99, beside the work-conserving policy")
    print("load  SLA ms  limit  wait ms   p99 ms  power W    | p99 ms  power W  |  saved")
    for line in saved:
        wait = line["max_wait_ms"]
        print(
            f"{line['traffic_intensity']:4.1f}{line['response_time_ms']:8.0f}"
            f"{line['control_limit']:7}{'-' if wait is None else f'{wait:.2f}':>9}"
            f"{line['p99_ms']:9.2f}{line['power_w']:9.2f}    |"
            f"{line['work_conserving_p99_ms']:7.2f}{line['work_conserving_power_w']:9.2f}  |"
            + (f"{100 * line['saved']:6.1f}%" if line["meets_sla"] else "  SLA cannot be met")
        )
    print()
    for name, value in times.items():
        print(f"{name}: {value:.3g}")


if __name__ == "__main__":
    main()
