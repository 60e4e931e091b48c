"""The optimal batching policy and its average cost (here by a long truncation of the queue)."""

from dataclasses import dataclass

from policy import policy_iteration
from policy.batching_policy import BatchingPolicy
from policy.objective import Weights
from policy.profile import Profile
from policy.smdp import TruncatedSmdp

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class ExactSolution:
    """An optimal policy and its average cost per millisecond."""

    policy: BatchingPolicy
    average_cost: float


def solve(profile: Profile, arrival_rate_per_s: float, weights: Weights) -> ExactSolution:
    """Solve with a queue that is made longer until its end does not matter."""
    longest = 2 * profile.max_batch_size + 8
    while True:
        smdp = TruncatedSmdp(profile, arrival_rate_per_s, weights, longest, 1e7)
        solution = policy_iteration.solve(smdp)
        share = policy_iteration.overflow_cost_share(smdp, solution.actions)
        if share <= _TOLERANCE * solution.average_cost or longest > 4000:
            head = solution.actions[: profile.best_batch_size].tolist()
            policy = BatchingPolicy(
                (*head, profile.best_batch_size), max_wait_ms=weights.max_wait_ms
            )
            return ExactSolution(policy, solution.average_cost)
        longest += longest // 2
