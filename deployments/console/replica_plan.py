"""Plan the replicas of a model, in the console's worker process."""

from typing import Any

from autoscaler.sizing.batch_queue_estimator import BatchQueueEstimator
from autoscaler.sizing.planner import Planner, Prices
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.service_model import service_model
from policy.try_delays import RETRIES, TryDelays

MAX_REPLICAS = 10_000
#: Searching policies by weights is slow, and most plans need none.
_MAX_TRIED = 32


def plan(
    profile: Profile,
    *,
    response_time_ms: float,
    percentile: float,
    arrival_rate_per_s: float,
    burst_factor: float = 1.0,
    energy_weight: float | None = None,
    energy_price: float | None = None,
    replica_price: float = 0.0,
) -> dict[str, Any]:
    """Return the plan for a scenario (`deployments.console.planner.Scenario`), in JSON types.

    The number of replicas covers the load times the burst factor; everything else is predicted at
    the load itself.

    Raises
    ------
    SojournError
        No number of replicas keeps the SLA, or the scenario does not fit the profile.
    """
    objective = ServiceLevelObjective(response_time_ms, percentile)
    weights = None if energy_weight is None else Weights(1.0, energy_weight)
    delays = TryDelays(retries=RETRIES)
    profile = service_model(profile, objective, delays).profile
    planner = Planner(profile, objective, BatchQueueEstimator(profile, delays, weights=weights))
    demand_per_s = burst_factor * arrival_rate_per_s
    most = MAX_REPLICAS
    if weights is not None:
        most = min(most, int(demand_per_s / profile.capacity_per_s) + _MAX_TRIED)
    chosen = planner.least(demand_per_s, most)
    if demand_per_s > arrival_rate_per_s:
        chosen = planner.at(chosen.prediction.replicas, arrival_rate_per_s)
    prices = None
    if energy_price is not None and profile.energy_mj is not None:
        prices = Prices(replica_price, energy_price)
        chosen = planner.cheapest(arrival_rate_per_s, most, prices, least=chosen)
    return {
        **chosen.describe(objective, prices),
        "max_batch_size": None if chosen.policy is None else chosen.policy.max_batch_size,
        "bottleneck": planner.bottleneck(chosen, arrival_rate_per_s),
    }
