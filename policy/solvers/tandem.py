"""The control limit of least weighted cost where the front works beside the device.

The decision process of `exact` knows the device only. A device that starts at once may cost the
front more than it has, or more than the wait for company would: so control limits are compared by
what front and device achieve together.
"""

import math
from dataclasses import replace

from policy.batch_sizes import least_control_limit
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import Weights
from policy.profile import Profile
from policy.solution import Solution
from policy.solvers import exact


def solve(
    profile: Profile,
    arrival_rate_per_s: float,
    weights: Weights,
    *,
    start: BatchingPolicy | None = None,
) -> Solution:
    """Find the policy of least average cost among control limits, and the device's optimum.

    Parameters
    ----------
    profile : Profile
        With a front beside the device.
    arrival_rate_per_s : float
        Poisson arrivals, requests per second, below the profile's capacity.
    weights : Weights
    start : BatchingPolicy, optional
        The policy of a similar problem; the search begins at its control limit.

    Returns
    -------
    Solution

    Raises
    ------
    InvalidInputError, InfeasibleError
        The arrival rate is not above 0, or not below the capacity; energy has a weight but the
        profile has no energy.
    """
    profile.arrivals_per_ms(arrival_rate_per_s)
    profile.energy_mj_for_weight(weights.energy_weight)
    best_size = profile.best_batch_size
    known: dict[int, Solution] = {}
    costs: dict[int, float] = {}

    def evaluated(policy: BatchingPolicy) -> tuple[float, Solution]:
        solution = Solution(profile, arrival_rate_per_s, weights, policy)
        try:
            return solution.average_cost, solution
        except InfeasibleError:
            return math.inf, solution

    def cost(limit: int) -> float:
        if not 1 <= limit <= best_size:
            return math.inf
        if limit not in costs:
            policy = BatchingPolicy.from_control_limit(limit, best_size, weights.max_wait_ms)
            costs[limit], known[limit] = evaluated(policy)
        return costs[limit]

    limit = least_control_limit(profile, arrival_rate_per_s)
    if start is not None and cost(start.control_limit) < cost(limit):
        limit = start.control_limit
    step = max(1, best_size // 4)
    while step:
        better = min((limit, limit - step, limit + step), key=cost)
        step = step // 2 if better == limit else step
        limit = better
    best_cost, best = cost(limit), known[limit]
    # The device's optimum may leave requests behind, which can be better still.
    try:
        device = exact.solve(replace(profile, front=None), arrival_rate_per_s, weights).policy
    except InfeasibleError:
        device = best.policy
    other_cost, other = evaluated(device) if device != best.policy else (math.inf, best)
    found = other if other_cost < best_cost else best
    if not math.isfinite(min(best_cost, other_cost)):
        found.evaluation  # noqa: B018 - says which stage cannot keep up
    return replace(found, rounds=len(costs))
