"""The child process of `deployments.console.planner`.

It reads one question per line from standard input, as JSON, and writes one line with its answer.
"""

from collections.abc import Mapping
from typing import Any

from autoscaler.sizing.batch_queue_estimator import BatchQueueEstimator
from autoscaler.sizing.planner import Planner, Prices
from deployments.console.answering import answer_scenarios
from deployments.console.questions import Scenario
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.try_delays import TryDelays

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


def _answer(about: Mapping[str, Any], scenario: Mapping[str, Any]) -> dict[str, Any]:
    return plan(
        Profile.from_dict(about["profile"]),
        TryDelays(**about["delays"]),
        Scenario.model_validate(scenario),
    )


if __name__ == "__main__":
    answer_scenarios(_answer)
