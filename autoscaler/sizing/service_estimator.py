"""The prediction of a service's fleet: what `plan`, the console and the simulator say of it.

`autoscaler.sizing.fleet_response` has the response-time model, and says how accurate it is. Beyond
the load that a replica takes within its SLA, it refuses what it cannot answer in time, and each
refusal is retried elsewhere.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autoscaler.sizing.estimators import Prediction
from autoscaler.sizing.fleet_response import FleetResponse
from autoscaler.sizing.rand import check_load
from autoscaler.sizing.rand_fleet import RandFleet
from policy.batcher.admission import time_lost_in_attempts_ms
from policy.batcher.requests import PolicySource
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.response_time.evaluation import Evaluation, evaluate
from policy.service_model import ServiceModel
from policy.try_delays import TryDelays

FloatArray = NDArray[np.float64]

# While fewer are late without refusals by time, replicas refuse nearly none.
_FEW_LATE = 1e-4
# What replicas set aside for attempts elsewhere is found to within this.
_LOST_RESOLUTION_MS = 0.02
# An event loop that is busier than this passes requests on too late.
_MAX_PASSED_ON = 0.9
# A waiting room beyond this, or beyond two full batches, is taken as this large: it fills only at
# overload, and evaluating it takes seconds.
_MAX_ROOM = 512


@dataclass(frozen=True)
class ServicePrediction(Prediction):
    """The predicted performance of a number of replicas. A response ends at the client.

    The power, in W, is of all replicas together. `bottleneck` is the stage of a replica that is
    busy for longer, "event_loop" or "device". `answered_percentile_ms` returns a percentile of the
    response time of the answered requests, and `cdf` maps response times in ms to the fraction of
    all requests answered within them. What cannot be predicted is None.
    """

    policy: BatchingPolicy
    mean_power_w: float | None
    bottleneck: str
    answered_percentile_ms: Callable[[float], float] | None = None
    cdf: Callable[[FloatArray], FloatArray] | None = None


class ServiceEstimator:
    """A model of replicas that batch by their policy table and refuse what would be late.

    Policies that are given instead of those of the service take all that wait.
    """

    def __init__(self, service: ServiceModel, policies: PolicySource | None = None) -> None:
        self._service = service
        self._given = policies

    @property
    def delays(self) -> TryDelays:
        return self._service.delays

    @property
    def monotone(self) -> bool:
        """Whether a fleet that meets the SLA still meets it with more replicas."""
        # With less load, a policy that weighs energy may wait longer than any SLA allows.
        objective = self._service.objective
        return not isinstance(objective, Weights) or not objective.energy_weight

    @property
    def capacity_per_s(self) -> float:
        """The arrival rate that saturates one replica."""
        return self._service.profile.capacity_per_s

    def check_feasible(self, objective: ServiceLevelObjective) -> None:
        """Raise `InfeasibleError` if no load is light enough for the SLA."""
        service = self._service
        _ = service.curve if self._given is None else service.curve_of(self._given.lookup)

    def least_to_consider(self, arrival_rate_per_s: float, objective: ServiceLevelObjective) -> int:
        """Return the replicas that the live autoscaler would order, or else that carry the load."""
        least = math.floor(arrival_rate_per_s / self.capacity_per_s) + 1
        if self._fleet is None:
            return least
        allowed = objective.late_share_allowed
        return max(least, self._fleet.replicas_needed(arrival_rate_per_s, allowed))

    @cached_property
    def _fleet(self) -> RandFleet | None:
        """The fleet as the live autoscaler sees it; None with policies that are not the service's.

        Of few replicas, it loses more than independent tries do.
        """
        service = self._service
        if self._given is not None:
            return None
        limits, curve = service.limits, service.curve
        limit = service.profile.bottleneck(curve.sla_rate_per_s, limits.max_batch_size)
        return RandFleet.of(
            curve,
            1e3 * limits.max_batch_size / limits.latency_ms[-1],
            service.sla,
            service.delays,
            limited_by_device=limit == "device",
        )

    def predict(
        self, arrival_rate_per_s: float, replicas: int, objective: ServiceLevelObjective
    ) -> ServicePrediction:
        """Predict the performance of a fleet under Poisson arrivals."""
        check_load(arrival_rate_per_s, replicas)
        if not arrival_rate_per_s:
            raise InvalidInputError("arrival_rate_per_s: must be above 0")
        share_per_s = arrival_rate_per_s / replicas
        policies, limits = self._given or self._service.policies, self._service.limits
        policy = policies.lookup(share_per_s)
        if policy.control_limit > 1:
            wait_ms = math.inf if policy.max_wait_ms is None else policy.max_wait_ms
            policy = replace(policy, max_wait_ms=min(wait_ms, limits.max_age_ms))
        profile = self._service.profile
        bottleneck = profile.bottleneck(share_per_s, policy.max_batch_size)
        hopeless = ServicePrediction(replicas, 0.0, math.inf, policy, None, bottleneck)
        try:
            evaluate_at = self._evaluation(policy, share_per_s)
            fleet = FleetResponse(evaluate_at, self.delays, arrival_rate_per_s, replicas)
        except InfeasibleError:
            return hopeless  # its event loop cannot keep up
        if fleet.is_overloaded:
            return hopeless
        level = fleet.service_level(objective.response_time_ms)
        if self._fleet is not None and objective == self._service.client_sla:
            level = min(level, 1 - self._fleet.lost_share(arrival_rate_per_s, replicas))
        return ServicePrediction(
            replicas,
            level,
            fleet.percentile_ms(objective.percentile),
            policy,
            fleet.mean_power_w,
            profile.bottleneck(share_per_s, fleet.mean_batch_size),
            fleet.answered_percentile_ms,
            fleet.cdf,
        )

    def _evaluation(
        self, policy: BatchingPolicy, share_per_s: float
    ) -> Callable[[float], Evaluation]:
        """Return the function that evaluates a replica at a rate of tries."""
        limits, profile = self._service.limits, self._service.profile.serial()
        room = min(limits.max_queue_rows, max(_MAX_ROOM, 2 * policy.max_batch_size))

        def by_room(rate: float) -> Evaluation:
            return evaluate(profile, policy, rate, max_queue_rows=room)

        if math.isinf(limits.admit_within_ms):
            return by_room
        event_loop, device = profile.event_loop, replace(profile, event_loop=None)
        passed_on_per_s, late_share = math.inf, _FEW_LATE
        if event_loop is not None:
            largest = policy.max_batch_size
            passed_on_per_s = _MAX_PASSED_ON * 1e3 / event_loop.ms_per_request(largest)
            late_share = limits.late_share_allowed  # an evaluation by time leaves its waits out
        with contextlib.suppress(InfeasibleError):
            alone = by_room(share_per_s)
            in_time = alone.service_level(limits.answer_within_ms) * (1 - alone.full_probability)
            if in_time >= 1 - late_share:
                return by_room

        def by_time(rate: float) -> Evaluation:
            lost_ms = 0.0
            while True:
                found = evaluate(
                    device,
                    policy,
                    rate,
                    max_queue_rows=room,
                    admit_within_ms=limits.admit_within_ms - lost_ms,
                    answer_within_ms=limits.answer_within_ms,
                )
                more_ms = time_lost_in_attempts_ms(limits, found.full_probability)
                if more_ms <= lost_ms + _LOST_RESOLUTION_MS:
                    refused = max(found.full_probability, 1 - passed_on_per_s / rate)
                    return replace(found, full_probability=refused)
                lost_ms = more_ms

        return by_time
