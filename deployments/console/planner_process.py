"""The child process of `deployments.console.planner`.

It reads one question per line from standard input, as JSON, and writes one line with its answer.
"""

import json
import os
import sys
from functools import lru_cache
from typing import Any

from autoscaler.sizing.batch_queue_estimator import BatchQueueEstimator
from autoscaler.sizing.planner import Planner, Prices
from autoscaler.sizing.try_delays import TryDelays
from deployments.console.questions import Scenario
from deployments.threads import limit_threads
from policy.errors import SojournError
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile

#: Low CPU priority: the requests on this machine come first.
_NICENESS = 10
MAX_REPLICAS = 10_000
#: Policies of weights are searched one number after the other; most need none of these.
_MAX_TRIED = 32


def plan(profile: Profile, delays: TryDelays, scenario: Scenario) -> dict[str, Any]:
    """Return the plan for a scenario, in JSON's types.

    The replicas are those that the load needs when it rises by the burst factor; the rest is
    predicted at the load itself.

    Raises
    ------
    SojournError
        No number of replicas keeps the SLA, or the scenario does not fit the profile.
    """
    objective = ServiceLevelObjective(scenario.response_time_ms, scenario.percentile)
    weights = None if scenario.energy_weight is None else Weights(1.0, scenario.energy_weight)
    planner = Planner(profile, objective, BatchQueueEstimator(profile, delays, weights=weights))
    load_per_s = scenario.arrival_rate_per_s
    demand_per_s = scenario.burst_factor * load_per_s
    most = MAX_REPLICAS
    if weights is not None:
        most = min(most, int(demand_per_s / profile.capacity_per_s) + _MAX_TRIED)
    chosen = planner.least(demand_per_s, most)
    if demand_per_s > load_per_s:
        chosen = planner.at(chosen.prediction.replicas, load_per_s)
    prices = None
    if scenario.energy_price is not None and profile.energy_mj is not None:
        prices = Prices(scenario.replica_price, scenario.energy_price)
        chosen = planner.cheapest(load_per_s, most, prices, least=chosen)
    return {
        **chosen.describe(objective, prices),
        "max_batch_size": None if chosen.policy is None else chosen.policy.max_batch_size,
        "bottleneck": planner.bottleneck(chosen, load_per_s),
    }


@lru_cache(maxsize=256)
def _answer(profile: str, delays: str, scenario: str) -> dict[str, Any]:
    try:
        return plan(
            Profile.from_dict(json.loads(profile)),
            TryDelays(**json.loads(delays)),
            Scenario.model_validate_json(scenario),
        )
    except SojournError as error:
        return {"error": str(error)}


def main() -> None:
    """Answer the questions on standard input until it ends."""
    os.nice(_NICENESS)
    limit_threads(1)
    for line in sys.stdin:
        message = json.loads(line)
        profile, delays = json.dumps(message["profile"]), json.dumps(message["delays"])
        answers = {
            name: _answer(profile, delays, json.dumps(scenario))
            for name, scenario in message["scenarios"].items()
        }
        print(json.dumps(answers), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
