"""The model's prediction for a fixed fleet under Poisson arrivals, to compare with a simulation."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoscaler.sizing.fleet_response import FleetResponse
from autoscaler.sizing.rand import rand_equilibrium
from policy.batcher.limits import Limits
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.try_delays import TryDelays

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Predicted:
    """The model's prediction for a fixed fleet under Poisson arrivals.

    Attributes
    ----------
    service_level : float
        Fraction of all requests that are answered in time.
    percentiles_ms : tuple of (float, float)
        Pairs of a percentile of the answered requests and its response time in ms; empty if they
        cannot be predicted.
    mean_power_w : float or None
        Mean power of all replicas together, in W; None if the profile has no energy.
    bottleneck : str
        The stage of a replica that is busy for longer, "event_loop" or "device".
    cdf : callable or None
        Maps response times in ms to the fraction of all requests answered within them; None if it
        cannot be predicted.
    """

    service_level: float
    percentiles_ms: tuple[tuple[float, float], ...]
    mean_power_w: float | None
    bottleneck: str
    cdf: Callable[[FloatArray], FloatArray] | None


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

    A response ends at the client, so it includes the reply's delay.

    Parameters
    ----------
    profile : Profile
        With the costs of the event loop, if known, and how batch times vary.
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
        None if the replicas refuse nearly every try, or their event loops cannot keep up: the model
        does not cover that.
    """
    if policy.control_limit > 1:
        wait_ms = math.inf if policy.max_wait_ms is None else policy.max_wait_ms
        policy = replace(policy, max_wait_ms=min(wait_ms, limits.max_age_ms))
    try:
        fleet = FleetResponse(
            profile,
            policy,
            delays,
            limits.max_queue_rows,
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


def predict_overload(
    profile: Profile,
    curve: LoadLatenessCurve,
    delays: TryDelays,
    arrival_rate_per_s: float,
    replicas: int,
) -> Predicted | None:
    """Predict a fixed fleet whose offered load exceeds its capacity within the SLA.

    Its replicas refuse what they cannot answer in time, and each refusal is retried elsewhere. The
    times of the answers are not predicted.

    Parameters
    ----------
    profile : Profile
        With the costs of the event loop, if known.
    curve : LoadLatenessCurve
        Of each replica.
    delays : TryDelays
    arrival_rate_per_s : float
        Requests per second to all replicas together.
    replicas : int

    Returns
    -------
    Predicted or None
        None if the fleet is not overloaded, or its replicas refuse only what finds no room.
    """
    per_replica_s = arrival_rate_per_s / replicas
    if not curve.overload_levels or per_replica_s <= curve.sla_rate_per_s:
        return None
    retries = 0 if replicas == 1 else delays.retries
    balance = rand_equilibrium(
        arrival_rate_per_s,
        replicas,
        lambda attempts_per_s: 1 - curve.service_level(attempts_per_s),
        retries,
    )
    if retries is None:
        level = float(balance.busy_probability < 1)
    else:
        level = 1 - balance.busy_probability ** (retries + 1)
    size = curve.batch_size_limit or profile.best_batch_size
    power_w = None
    if profile.energy_mj is not None:
        # The device always works, in the largest batches.
        power_w = float(replicas * profile.energy_mj[size - 1] / profile.latency_ms[size - 1])
    return Predicted(
        service_level=level,
        percentiles_ms=(),
        mean_power_w=power_w,
        bottleneck=profile.bottleneck(per_replica_s, size),
        cdf=None,
    )
