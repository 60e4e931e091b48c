"""The child process of `deployments.control.burst_policy`.

It reads what to solve as JSON from standard input, and writes the policy or ``{"error": message}``
to standard output.
"""

import json
import sys
from typing import Any

from policy.batching_policy import BatchingPolicy
from policy.errors import SojournError
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


def main() -> None:
    """Solve what is asked on standard input."""
    try:
        result = solve(json.load(sys.stdin)).to_dict()
    except SojournError as error:
        result = {"error": str(error)}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
