"""What the model says of a fixed fleet under Poisson arrivals, to be set beside its simulation."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from autoscaler.sizing.estimators import TryDelays
from autoscaler.sizing.rand import rand_equilibrium, retried_response_time_cdf
from deployments.batcher.limits import Limits
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import Evaluation, evaluate

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Predicted:
    """What the model says of a fixed fleet under Poisson arrivals.

    Attributes
    ----------
    service_level : float
        Share of the requests that are answered in time.
    percentiles_ms : tuple of (float, float)
        Percentile of the answered requests, and its response time.
    mean_power_w : float or None
        Of all replicas; None where no energy is known.
    cdf : callable
        Share of all requests answered within times in ms.
    """

    service_level: float
    percentiles_ms: tuple[tuple[float, float], ...]
    mean_power_w: float | None
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
    """Predict by RAND over batching replicas, as `autoscaler.sizing.batch_queue_estimator` does.

    A response is over when the client has it, so the answer's way back counts too.

    Parameters
    ----------
    profile : Profile
    policy : BatchingPolicy
        Of each replica.
    objective : ServiceLevelObjective
    delays : TryDelays
    limits : Limits
        Of each replica: its waiting room, and the longest wait for others.
    arrival_rate_per_s : float
        Of all replicas together.
    replicas : int
    percentiles : tuple of float
        Those to give.

    Returns
    -------
    Predicted or None
        None where nearly all tries are refused: the model says nothing of that.
    """
    if policy.control_limit > 1:
        wait_ms = math.inf if policy.max_wait_ms is None else policy.max_wait_ms
        policy = replace(policy, max_wait_ms=min(wait_ms, limits.max_age_ms))

    @cache
    def at(rate_per_s: float) -> Evaluation:
        return evaluate(profile, policy, rate_per_s, waiting_room=limits.waiting_room)

    found = rand_equilibrium(
        arrival_rate_per_s, replicas, lambda rate: at(rate).full_probability, delays.retries
    )
    busy = found.busy_probability
    if busy >= 1:
        return None
    accepted = at(found.attempt_rate_per_s)

    def cdf(times_ms: FloatArray) -> FloatArray:
        return retried_response_time_cdf(
            np.asarray(times_ms) - delays.reply_delay_ms,
            busy,
            accepted.cdf,
            delays.request_delay_ms,
            delays.reply_delay_ms,
            delays.retry_delay_ms,
            delays.retries,
        )

    answered = 1.0 if delays.retries is None else 1 - busy ** (delays.retries + 1)

    def percentile_ms(percentile: float) -> float:
        low = delays.way_ms
        high = 2 * (low + accepted.response_percentile_ms(percentile))
        wanted = answered * percentile / 100

        def missing(t_ms: float) -> float:
            return float(cdf(np.array(t_ms))) - wanted

        while missing(high) < 0:
            high *= 2
        return float(brentq(missing, low, high, rtol=1e-6))

    power_w = accepted.mean_power_w
    return Predicted(
        service_level=float(cdf(np.array(objective.response_time_ms))),
        percentiles_ms=tuple((p, percentile_ms(p)) for p in percentiles),
        mean_power_w=None if power_w is None else replicas * power_w,
        cdf=cdf,
    )
