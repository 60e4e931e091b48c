"""The paper's method for one arrival rate: lengthen the queue until its end hardly counts.

Source: Xu, Sun, Zhou, Niu, arXiv 2301.12865, section IV: the truncated process is acceptable with
the tolerance δ if less than δ of its average cost, Δ, is paid in the overflow state (equation 15).
"""

import math
from dataclasses import dataclass
from typing import Literal

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import Weights
from policy.profile import Profile
from policy.solvers.reference import policy_iteration, relative_value_iteration
from policy.solvers.reference.truncated import TruncatedSmdp

#: The tolerance δ, and the span and the number of sweeps after which value iteration ends.
TOLERANCE, SPAN, MAX_SWEEPS = 1e-3, 0.01, 10_000
#: The factor by which a queue that does not suffice grows, and its greatest length.
_GROWTH, _LONGEST = 1.05, 1024


@dataclass(frozen=True)
class TruncatedResult:
    """A policy of the truncated process, its average cost, and Δ (`overflow_cost_per_ms`).

    `rounds` are sweeps of value iteration or rounds of policy iteration.
    """

    policy: BatchingPolicy | None
    max_queue_length: int
    rounds: int
    overflow_cost_per_ms: float
    average_cost: float


def solve_truncated(smdp: TruncatedSmdp, method: Literal["rvi", "pi"]) -> TruncatedResult:
    """Solve by relative value iteration or by policy iteration, and evaluate what comes out.

    There is no policy if the result is never to serve a full queue.
    """
    if method == "pi":
        found = policy_iteration.solve(smdp)
    else:
        found = relative_value_iteration.solve(
            smdp, span=SPAN, max_sweeps=MAX_SWEEPS, must_converge=False
        )
    return TruncatedResult(
        smdp.batching_policy(found.actions) if found.actions[-1] else None,
        smdp.max_queue_length,
        found.rounds,
        policy_iteration.overflow_cost_per_ms(smdp, found.actions),
        policy_iteration.evaluate(smdp, found.actions)[0],
    )


def solve_within(
    profile: Profile,
    arrival_rate_per_s: float,
    weights: Weights,
    method: Literal["rvi", "pi"],
    overflow_cost: float,
    max_queue_length: int | None = None,
) -> TruncatedResult:
    """Solve the queue of a length, or the first that suffices from the largest batch on.

    Raises
    ------
    InfeasibleError
        The queue does not suffice, or none does: the overflow cost is too low.
    """
    length = max_queue_length or profile.max_batch_size
    while True:
        smdp = TruncatedSmdp(profile, arrival_rate_per_s, weights, length, overflow_cost)
        found = solve_truncated(smdp, method)
        if found.policy is not None and found.overflow_cost_per_ms < TOLERANCE:
            return found
        if max_queue_length is not None or length >= _LONGEST:
            raise InfeasibleError(
                f"a queue of {length} does not suffice at an overflow cost of {overflow_cost:g}: "
                f"its overflow state has {found.overflow_cost_per_ms:.2g} of the average cost, not "
                f"below {TOLERANCE:g}; use a longer queue or another overflow cost"
            )
        length = min(_LONGEST, math.ceil(_GROWTH * (length + 1)))
