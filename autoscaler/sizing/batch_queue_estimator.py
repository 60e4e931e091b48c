"""An estimator that models the batching policy and the waiting room of each replica.

`autoscaler.sizing.fleet_response` has the response-time model and says how accurate it is.
"""

import math
from dataclasses import dataclass, field

from autoscaler.sizing.estimators import Prediction
from autoscaler.sizing.fleet_response import FleetResponse
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.profile import Profile
from policy.try_delays import TryDelays

# Shares of the requests that may be late for which the policy is solved in turn. The first is
# slightly stricter than the SLA. The next are tried if refusals and retries then break the SLA.
_LATE_SHARES = (0.999, 0.9, 0.5)
# A waiting room beyond this, or beyond two full batches, is taken as this large: it fills only at
# overload, and evaluating it takes seconds. The ninth digit of a percentile changes.
_MAX_ROOM = 256


@dataclass(frozen=True)
class BatchQueuePrediction(Prediction):
    """The predicted performance of a number of replicas, with the batching policy behind it.

    Attributes
    ----------
    policy : BatchingPolicy or None
        Of each replica: the policy of least power that keeps the SLA or, if none does, the one
        with the lowest percentile. None if the replicas cannot carry the load.
    mean_power_w : float or None
        Mean power of all replicas together, in W. None if the profile has no energy, or if
        `policy` is None.
    busy_probability : float
        Fraction of the tries that are refused.
    """

    policy: BatchingPolicy | None = None
    mean_power_w: float | None = None
    busy_probability: float = 1.0


@dataclass(frozen=True, eq=False)
class BatchQueueEstimator:
    """A model of replicas that batch by the policy of least power under the SLA.

    More replicas can lower the predicted service level, because the policy spends the slack that
    they bring on larger batches and less power. They never turn an SLA that is met into one that is
    missed. (A replica with fewer arrivals could imitate one with more by adding dummy requests, so
    the best policy of all is never worse at a lower rate. For the policies considered here, a
    control limit and a maximum wait, a test checks it.)

    Attributes
    ----------
    profile : Profile
        Of each replica.
    delays : TryDelays
    max_queue_rows : int or None
        Requests that may wait in a replica, besides those in service. None: as many full batches
        as still finish in time behind one that has just started, and at least one.
    weights : Weights or None
        If given, replicas batch by the policy of the lowest weighted cost instead, whatever the
        SLA.

    Raises
    ------
    InvalidInputError
        The waiting room does not hold a full batch.
    """

    profile: Profile
    delays: TryDelays = field(default_factory=TryDelays)
    max_queue_rows: int | None = None
    weights: Weights | None = None

    def __post_init__(self) -> None:
        if self.max_queue_rows is not None and self.max_queue_rows < self.profile.max_batch_size:
            raise InvalidInputError(
                f"max_queue_rows: must hold a full batch of {self.profile.max_batch_size}, "
                f"not {self.max_queue_rows}"
            )

    @property
    def monotone(self) -> bool:
        """Whether a fleet that meets the SLA still meets it with more replicas."""
        # With less load, a policy that weighs energy may wait longer than any SLA allows.
        return self.weights is None

    @property
    def capacity_per_s(self) -> float:
        """The arrival rate that saturates one replica."""
        return self.profile.capacity_per_s

    def check_feasible(self, objective: ServiceLevelObjective) -> None:
        """Raise `InfeasibleError` if even a batch of one takes too long."""
        profile = self.profile.serial()
        batch_ms = float(profile.latency_ms[0])
        if profile.event_loop is not None:
            batch_ms += profile.event_loop.ms_per_request(1)
        min_ms = self.delays.request_delay_ms + batch_ms
        if objective.response_time_ms <= min_ms:
            raise InfeasibleError(
                f"no number of replicas answers {objective.in_words()}: a batch of one takes "
                f"{batch_ms:.4g} ms and the way there {self.delays.request_delay_ms:.4g} ms; "
                f"allow more than {min_ms:.4g} ms, or use a faster device"
            )

    def predict(
        self, arrival_rate_per_s: float, replicas: int, objective: ServiceLevelObjective
    ) -> BatchQueuePrediction:
        """Solve the policy of each replica, and predict the performance of the fleet.

        Parameters
        ----------
        arrival_rate_per_s : float
            Requests per second to all replicas together.
        replicas : int
        objective : ServiceLevelObjective
            Response times end with the batch: the delay of the reply is not counted.

        Raises
        ------
        InvalidInputError
            The arrival rate is not positive and finite, or there is no replica.
        InfeasibleError
            The response time is too short for a batch of one.
        """
        if not 0 < arrival_rate_per_s < math.inf:
            raise InvalidInputError(
                f"arrival_rate_per_s: must be above 0 and finite, not {arrival_rate_per_s}"
            )
        if replicas < 1:
            raise InvalidInputError(f"replicas: must be at least 1, not {replicas}")
        self.check_feasible(objective)
        share_per_s = arrival_rate_per_s / replicas
        if share_per_s >= self.capacity_per_s:
            return BatchQueuePrediction(replicas, 0.0, math.inf)
        if self.weights is not None:
            policy = solve(self.profile, share_per_s, self.weights).policy
            return self._with_policy(arrival_rate_per_s, replicas, objective, policy)
        late_percent = 100 - objective.percentile
        start: BatchingPolicy | None = None
        for late_share in _LATE_SHARES:
            solution = solve(
                self.profile,
                share_per_s,
                ServiceLevelObjective(
                    response_time_ms=objective.response_time_ms - self.delays.request_delay_ms,
                    percentile=100 - late_share * late_percent,
                ),
                start=start,
            )
            start = solution.policy
            prediction = self._with_policy(arrival_rate_per_s, replicas, objective, solution.policy)
            if prediction.meets(objective) or not solution.meets_sla:
                break
        return prediction

    def _with_policy(
        self,
        arrival_rate_per_s: float,
        replicas: int,
        objective: ServiceLevelObjective,
        policy: BatchingPolicy,
    ) -> BatchQueuePrediction:
        room = self._max_queue_rows(objective, policy)
        overloaded = BatchQueuePrediction(replicas, 0.0, math.inf, policy)
        try:
            fleet = FleetResponse(
                self.profile, policy, self.delays, room, arrival_rate_per_s, replicas
            )
            if fleet.is_overloaded:
                return overloaded
            return self._of_fleet(fleet, replicas, objective, policy)
        except InfeasibleError:
            return overloaded  # retries bring the event loop more than it can read

    def _of_fleet(
        self,
        fleet: FleetResponse,
        replicas: int,
        objective: ServiceLevelObjective,
        policy: BatchingPolicy,
    ) -> BatchQueuePrediction:
        return BatchQueuePrediction(
            replicas=replicas,
            service_level=fleet.service_level(objective.response_time_ms),
            percentile_ms=fleet.percentile_ms(objective.percentile),
            policy=policy,
            mean_power_w=fleet.mean_power_w,
            busy_probability=fleet.busy_probability,
        )

    def _max_queue_rows(self, objective: ServiceLevelObjective, policy: BatchingPolicy) -> int:
        if self.max_queue_rows is not None:
            return self.max_queue_rows
        size = policy.max_batch_size
        left_ms = objective.response_time_ms - self.delays.request_delay_ms
        batches = math.floor(left_ms / float(self.profile.batch_interval_ms()[size - 1]) + 1e-9)
        return min(size * max(1, batches - 1), max(_MAX_ROOM, 2 * size))
