"""The control limit of least weighted cost where the event loop works beside the device.

The decision process of `exact` knows the device only. A device that starts at once may cost the
event loop more than it has, or more than the wait for company would: so control limits are compared
by what event loop and device achieve together.
"""

import contextlib
import math
from dataclasses import replace

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import Weights
from policy.profile import Profile
from policy.solvers import exact
from policy.solvers.batch_sizes import least_control_limit
from policy.solvers.solution import Solution


def solve(
    profile: Profile,
    arrival_rate_per_s: float,
    weights: Weights,
    *,
    start: BatchingPolicy | None = None,
) -> Solution:
    """Find the policy of least average cost among control limits, and the device's optimum.

    From `start`, the policy of a similar problem, the search goes in steps of one.
    """
    profile.arrivals_per_ms(arrival_rate_per_s)
    profile.energy_mj_for_weight(weights.energy_weight)
    best_size = profile.best_batch_size
    known: dict[BatchingPolicy, tuple[float, Solution]] = {}

    def evaluated(policy: BatchingPolicy) -> tuple[float, Solution]:
        if policy not in known:
            solution = Solution(profile, arrival_rate_per_s, weights, policy)
            known[policy] = _cost_if_it_keeps_up(solution), solution
        return known[policy]

    def with_limit(limit: int) -> BatchingPolicy:
        return BatchingPolicy.from_control_limit(limit, best_size)

    def cost(limit: int) -> float:
        return evaluated(with_limit(limit))[0] if 1 <= limit <= best_size else math.inf

    limit, step = least_control_limit(profile, arrival_rate_per_s), max(1, best_size // 4)
    if start is not None:
        limit = min((limit, start.control_limit), key=cost)
        step = 1
    while step:
        better = min((limit, limit - step, limit + step), key=cost)
        step = step // 2 if better == limit else step
        limit = better
    policies = [with_limit(limit)]
    # The device's optimum may leave requests behind, which can be better still.
    with contextlib.suppress(InfeasibleError):
        device = replace(profile, event_loop=None)
        policies.append(exact.solve(device, arrival_rate_per_s, weights, start=start).policy)
    best_cost, best = min(map(evaluated, policies), key=lambda found: found[0])
    if not math.isfinite(best_cost):
        best.evaluation  # noqa: B018 - says which stage cannot keep up
    return best


def _cost_if_it_keeps_up(solution: Solution) -> float:
    try:
        return solution.average_cost
    except InfeasibleError:
        return math.inf
