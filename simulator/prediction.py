"""The model's prediction for a fixed fleet under Poisson arrivals, to compare with a simulation."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoscaler.sizing.fleet_response import FleetResponse
from autoscaler.sizing.try_delays import TryDelays
from deployments.batcher.limits import Limits
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Predicted:
    """The model's prediction for a fixed fleet under Poisson arrivals.

    Attributes
    ----------
    service_level : float
        Fraction of all requests that are answered in time.
    percentiles_ms : tuple of (float, float)
        Pairs of a percentile of the answered requests and its response time in ms.
    mean_power_w : float or None
        Mean power of all replicas together, in W; None if the profile has no energy.
    bottleneck : str
        The stage of a replica that is busy for longer, "front" or "device".
    cdf : callable
        Maps response times in ms to the fraction of all requests answered within them.
    """

    service_level: float
    percentiles_ms: tuple[tuple[float, float], ...]
    mean_power_w: float | None
    bottleneck: str
    cdf: Callable[[FloatArray], FloatArray]


def predict(
    profile: Profile,
    policy: BatchingPolicy,
    objective: ServiceLevelObjective,
    delays: TryDelays,
    limits: Limits,
    arrival_rate_per_s: float,
    replicas: int,
    percentiles: tuple[float, ...],
) -> Predicted | None:
    """Predict a fixed fleet with the autoscaler's response-time model.

    A response is over when the client has it, so the reply's way back counts too.

    Parameters
    ----------
    profile : Profile
        With the costs of the front, if known, and how batch times vary.
    policy : BatchingPolicy
        Of each replica.
    objective : ServiceLevelObjective
    delays : TryDelays
    limits : Limits
        Of each replica: its waiting room, and the longest wait for others.
    arrival_rate_per_s : float
        Requests per second to all replicas together.
    replicas : int
    percentiles : tuple of float
        Percentiles to predict, each between 0 and 100.

    Returns
    -------
    Predicted or None
        None if the replicas refuse nearly every try, or their fronts cannot keep up: the model does
        not cover that.
    """
    if policy.control_limit > 1:
        wait_ms = math.inf if policy.max_wait_ms is None else policy.max_wait_ms
        policy = replace(policy, max_wait_ms=min(wait_ms, limits.max_age_ms))
    try:
        fleet = FleetResponse(
            profile,
            policy,
            delays,
            limits.waiting_room,
            arrival_rate_per_s,
            replicas,
            counts_reply=True,
        )
    except InfeasibleError:
        return None
    if fleet.is_overloaded:
        return None
    per_replica_s = arrival_rate_per_s / replicas
    return Predicted(
        service_level=fleet.service_level(objective.response_time_ms),
        percentiles_ms=tuple((p, fleet.answered_percentile_ms(p)) for p in percentiles),
        mean_power_w=fleet.mean_power_w,
        bottleneck=profile.bottleneck(per_replica_s, fleet.mean_batch_size),
        cdf=fleet.cdf,
    )
