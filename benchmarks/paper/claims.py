"""The claims in the text of the SMDP paper (arXiv 2301.12865, section V), and our results."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.inputs import GOOGLENET_P4
from benchmarks.paper import published, table_1
from policy.baseline_policies import static, work_conserving
from policy.errors import InfeasibleError
from policy.objective import Weights
from policy.optimization import solve
from policy.response_time.evaluation import evaluate
from policy.solvers.reference.methods import policy_iteration
from policy.solvers.solution import Solution

LOADS = tuple(round(0.1 * tenths, 1) for tenths in range(1, 10))
#: The policies that the paper compares its own with.
USUAL_POLICIES = {
    "start whenever free": work_conserving(GOOGLENET_P4),
    **{f"always {size}": static(GOOGLENET_P4, size) for size in published.STATIC_BATCH_SIZES},
}
_WITHIN = 0.01  # as close to the exact cost as two curves of a figure can be told apart


@dataclass(frozen=True)
class Claim:
    """A claim of the paper's text.

    Attributes
    ----------
    claim : str
        What the paper says, in our words.
    holds : bool
        Whether the two agree everywhere in the paper's setting.
    """

    claim: str
    found: str
    holds: bool


def rate_per_s(load: float) -> float:
    """Return the arrivals per second at a fraction `load` of the device's capacity."""
    return load * GOOGLENET_P4.capacity_per_s


@cache
def optimal(load: float, energy_weight: float) -> Solution:
    """Solve for the optimal policy over queues of any length, at a latency weight of 1."""
    return solve(GOOGLENET_P4, rate_per_s(load), Weights(1, energy_weight))


@cache
def mean_response_and_power(policy: str, load: float) -> tuple[float, float] | None:
    """Return mean response (ms) and mean power (W) of one of `USUAL_POLICIES`.

    Return None where the policy cannot keep up.
    """
    try:
        evaluation = evaluate(GOOGLENET_P4, USUAL_POLICIES[policy], rate_per_s(load))
    except InfeasibleError:
        return None
    assert evaluation.mean_power_w is not None
    return evaluation.mean_response_ms, evaluation.mean_power_w


def excess(policy: str, load: float, energy_weight: float) -> float:
    """Return a policy's average cost over the optimal one, minus 1; infinite if unstable."""
    point = mean_response_and_power(policy, load)
    if point is None:
        return float("inf")
    return (point[0] + energy_weight * point[1]) / optimal(load, energy_weight).average_cost - 1


def length_that_settles(overflow_cost: float) -> int:
    """Return the shortest queue that is ever served, at a cost within 1% of the exact one."""
    exact_cost = table_1.exact_cost()
    shortest, longest = published.QUEUE_LENGTHS
    for length in range(shortest, longest + 1):
        smdp = table_1.truncated_problem(length, overflow_cost)
        solution = policy_iteration(smdp)
        served = solution.actions[-1] > 0
        if served and abs(solution.average_cost / exact_cost - 1) < _WITHIN:
            return length
    raise InfeasibleError(f"overflow cost {overflow_cost:g}: no queue up to {longest} suffices")


def check() -> Iterator[Claim]:
    """Check the claims of the paper's sections V-A to V-C on which policies are good."""
    yield from _solutions()
    yield from _comparisons()
    yield from _truncations()


def _solutions() -> Iterator[Claim]:
    throughput = GOOGLENET_P4.capacity_per_s / 1e3
    yield Claim(
        f"largest service rate {published.MAX_THROUGHPUT_PER_MS:g} requests/ms",
        f"{throughput:.4f}",
        round(throughput, 2) == published.MAX_THROUGHPUT_PER_MS,
    )
    limits = {
        weight: [optimal(load, weight).policy.control_limit for load in LOADS]
        for weight in published.ENERGY_WEIGHTS
    }
    yield Claim(
        "w2 = 500: the control limit is 32 at every load",
        _span(limits[500.0]),
        set(limits[500.0]) == {published.MAX_BATCH_SIZE},
    )
    rising = list(zip(*limits.values(), strict=True))
    yield Claim(
        "the control limit rises with w2",
        "at each of 9 loads, over w2 = 0, 0.1, 1, 500",
        all(list(of_load) == sorted(of_load) for of_load in rising),
    )


def _comparisons() -> Iterator[Claim]:
    weights = np.linspace(0, published.MAX_ENERGY_WEIGHT, 9)
    least = min(
        excess(policy, load, float(weight))
        for policy in USUAL_POLICIES
        for load in LOADS
        for weight in weights
    )
    yield Claim(
        "no other policy costs less, w2 from 0 to 20",
        f"none at {len(LOADS)} loads and {len(weights)} weights",
        least > -1e-9,
    )
    above = {
        load: [excess("start whenever free", load, weight) for weight in (5, 20)] for load in LOADS
    }
    yield Claim(
        "starting whenever free is far from optimal for w2 > 5",
        "cost above the optimum, w2 = 5 to 20: "
        + ", ".join(
            f"{100 * above[load][0]:.0f} to {100 * above[load][1]:.0f}% at load {load:g}"
            for load in (0.1, 0.3, 0.7, 0.9)
        ),
        min(low for low, _ in above.values()) > 0.05,
    )
    share = 8 / float(GOOGLENET_P4.latency_ms[7]) / (GOOGLENET_P4.capacity_per_s / 1e3)
    yield Claim(
        "always 8 is unstable at loads of 0.8 and more",
        f"stable below load {share:.3f}",
        mean_response_and_power("always 8", 0.7) is not None
        and mean_response_and_power("always 8", 0.8) is None,
    )


def _truncations() -> Iterator[Claim]:
    lengths = [length_that_settles(row.overflow_cost) for row in published.TABLE_1]
    yield Claim(
        "g settles near s_max = 35, 50, 70 with c_o = 10000, 1000, 100",
        f"within 1% from {lengths[0]}, {lengths[1]}, {lengths[2]} on: the other way round",
        lengths[:3] == sorted(lengths[:3]),
    )
    yield Claim(
        "g settles near s_max = 170, 200 with c_o = 10, 0",
        f"within 1% from {lengths[3]}, {lengths[4]} on if solved to the end; Table I: 161, 192",
        lengths[3] <= 170 and lengths[4] <= 200,
    )
    by_cost = {row.overflow_cost: row for row in published.TABLE_1}
    space = 1 - by_cost[1e2].space / by_cost[0.0].space
    time = 1 - by_cost[1e2].time / by_cost[0.0].time
    yield Claim(
        "c_o = 100 instead of 0 saves 63.5% of the space and 98% of the time",
        f"{100 * space:.1f}% and {100 * time:.1f}% by Table I",
        round(space, 3) == 0.635 and round(time, 2) == 0.98,
    )


def _span(limits: list[int]) -> str:
    low, high = min(limits), max(limits)
    return f"{low}" if low == high else f"{low} to {high}"
