"""The child process of `deployments.control.burst_policy`.

It is asked what to solve, and answers with the policy.
"""

from typing import Any

from deployments.control.child import answer_questions
from policy.batching_policy import BatchingPolicy
from policy.mmpp import Mmpp
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.solvers import mmpp

#: Share of the late requests allowed that is left to errors of the estimate. With 200 s of memory,
#: 0.3 kept 99% in 16 of 16 estimates of bursts close to the capacity, no margin in 6 of them.
MARGIN = 0.3


def solve(message: dict[str, Any]) -> BatchingPolicy:
    """Return the policy for what `BurstPolicy` asks."""
    process = message["process"]
    return mmpp.solve(
        Profile.from_dict(message["profile"]),
        Mmpp(tuple(process["rates_per_s"]), tuple(process["stays_s"])),
        ServiceLevelObjective(**message["objective"]),
        waiting_room=message["waiting_room"],
        start=BatchingPolicy.from_dict(message["start"]),
        margin=MARGIN,
    ).policy


if __name__ == "__main__":
    answer_questions(lambda message: solve(message).to_dict())
