"""What one replica carries within the SLA."""

from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time import evaluate

_BISECTIONS = 20


def sla_rate_per_s(profile: Profile, objective: ServiceLevelObjective, waiting_room: int) -> float:
    """Find the highest arrival rate at which one replica alone meets the SLA.

    It starts a batch whenever it is free; what finds the waiting room full is late. 0 where it
    meets the SLA at no rate.

    Parameters
    ----------
    profile : Profile
    objective : ServiceLevelObjective
    waiting_room : int
        Requests that may wait besides those in service.
    """
    policy = BatchingPolicy.from_control_limit(1, profile.best_batch_size)

    def meets(rate: float) -> bool:
        evaluation = evaluate(profile, policy, rate, waiting_room=waiting_room)
        served = 1 - evaluation.full_probability
        level = served * evaluation.service_level(objective.response_time_ms)
        return level >= objective.percentile / 100

    low, high = 0.0, profile.capacity_per_s
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low
