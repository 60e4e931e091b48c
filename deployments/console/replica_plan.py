"""Plan the replicas of a model, in the console's worker process."""

from typing import Any

from autoscaler.sizing.planner import Planner, Prices
from autoscaler.sizing.service_estimator import ServiceEstimator, ServicePrediction
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.service_model import BatchingSettings, service_model
from policy.try_delays import TryDelays

MAX_REPLICAS = 10_000
#: Searching policies by weights is slow, and most plans need none.
_MAX_TRIED = 32


def plan(
    profile: Profile,
    delays: TryDelays,
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
    the load itself. `SojournError` if no number of replicas keeps the SLA.
    """
    objective = ServiceLevelObjective(response_time_ms, percentile)
    settings = BatchingSettings(objective="sla")
    if energy_weight is not None:
        settings = BatchingSettings(objective="weights", weights=Weights(1.0, energy_weight))
    service = service_model(profile, objective, delays, settings)
    estimator, profile = ServiceEstimator(service), service.profile
    planner = Planner(profile, objective, estimator)
    demand_per_s = burst_factor * arrival_rate_per_s
    most = MAX_REPLICAS
    if not estimator.monotone:
        most = min(most, int(demand_per_s / profile.capacity_per_s) + _MAX_TRIED)
    chosen = planner.least(demand_per_s, most)
    if demand_per_s > arrival_rate_per_s:
        chosen = planner.at(chosen.prediction.replicas, arrival_rate_per_s)
    prices = None
    if energy_price is not None and profile.energy_mj is not None:
        prices = Prices(replica_price, energy_price)
        chosen = planner.cheapest(arrival_rate_per_s, most, prices, least=chosen)
    prediction = chosen.prediction
    assert isinstance(prediction, ServicePrediction)
    return {
        **chosen.describe(objective, prices),
        "max_batch_size": prediction.policy.max_batch_size,
        "bottleneck": None if profile.event_loop is None else prediction.bottleneck,
    }
