"""RAND over batching replicas: sizing that knows the batching policy.

A replica with room for many requests queues them and starts batches as its policy says; to RAND
it is busy only when its waiting room is full. With a the rate of tries at one replica, of n that
share the arrivals λ, a (1 - P_full(a)) = λ/n; P_busy = P_full(a); and the execution time of
Theorem 2 becomes the response time of the requests that the replica accepts, in distribution.

Like the theorem it takes the tries to be independent: close for eight replicas and more, hopeful
for two or three that refuse often (simulated at 98% of capacity and 0.05 predicted refusals, eight
fall within 0.001 of the predicted service level, two 0.03 below it).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from autoscaler.sizing.estimators import Prediction, TryDelays
from autoscaler.sizing.rand import rand_equilibrium, retried_response_time_cdf
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import Evaluation, evaluate
from policy.solvers.constrained import solve_constrained

# The policy is solved for a little more than the SLA asks, and for still more where refusals and
# retries then take it below: these shares of the requests that may be late.
_LATE_SHARES = (0.999, 0.9, 0.5)


@dataclass(frozen=True)
class BatchQueuePrediction(Prediction):
    """What `replicas` replicas make of an arrival rate, and how they batch.

    Attributes
    ----------
    policy : BatchingPolicy or None
        Of each replica: that of least power whose percentile holds; where none holds, that of the
        least percentile. None where the replicas cannot carry the load.
    mean_power_w : float or None
        Of all replicas together; None where the profile has no energy, or with `policy`.
    busy_probability : float
        Share of the tries that are refused.
    """

    policy: BatchingPolicy | None = None
    mean_power_w: float | None = None
    busy_probability: float = 1.0


@dataclass(frozen=True, eq=False)
class BatchQueueEstimator:
    """Predicts by RAND over replicas that batch by the policy of least power under the SLA.

    One replica more lets each batch longer, so it can lower the predicted service level: the policy
    turns what room the SLA leaves into less power. It does not take an SLA that is met below it.
    (A replica with fewer arrivals could do as well as one with more by making up the difference
    with requests of its own, so the best policy of all never does worse at a lower rate; for the
    policies of a control limit and a max wait the tests look.)

    Attributes
    ----------
    profile : Profile
        Of each replica.
    delays : TryDelays
    waiting_room : int or None
        Requests that may wait in a replica besides those in service. None: as many as full batches
        serve in time behind a batch just begun, but at least one full batch.
    """

    profile: Profile
    delays: TryDelays = field(default_factory=TryDelays)
    waiting_room: int | None = None

    monotone = True

    def __post_init__(self) -> None:
        if self.waiting_room is not None and self.waiting_room < self.profile.max_batch_size:
            raise InvalidInputError(
                f"waiting_room: must hold a full batch, {self.profile.max_batch_size}, "
                f"not {self.waiting_room}"
            )

    @property
    def capacity_per_s(self) -> float:
        """Highest rate that one replica can carry."""
        return self.profile.capacity_per_s

    def check_feasible(self, objective: ServiceLevelObjective) -> None:
        """Raise `InfeasibleError` where even a batch of one is too slow."""
        batch_ms = float(self.profile.latency_ms[0])
        least_ms = self.delays.request_delay_ms + batch_ms
        if objective.response_time_ms <= least_ms:
            raise InfeasibleError(
                f"no number of replicas answers {objective.in_words()}: a batch of one takes "
                f"{batch_ms:.4g} ms and the way there {self.delays.request_delay_ms:.4g} ms; "
                f"allow more than {least_ms:.4g} ms, or use a faster device"
            )

    def predict(
        self, arrival_rate_per_s: float, replicas: int, objective: ServiceLevelObjective
    ) -> BatchQueuePrediction:
        """Predict by RAND over batching replicas.

        Raises
        ------
        InvalidInputError
            The arrival rate is not above 0, or there is no replica.
        InfeasibleError
            The response time is shorter than a batch of one and the way there.
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
        late = 100 - objective.percentile
        for late_share in _LATE_SHARES:
            solution = solve_constrained(
                self.profile,
                share_per_s,
                response_time_ms=objective.response_time_ms - self.delays.request_delay_ms,
                percentile=100 - late_share * late,
            )
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
        room = self._room(objective, policy)
        delays = self.delays

        @cache
        def at(rate: float) -> Evaluation:
            return evaluate(self.profile, policy, rate, waiting_room=room)

        found = rand_equilibrium(
            arrival_rate_per_s,
            replicas,
            lambda rate: at(rate).full_probability,
            delays.retries,
        )
        busy = found.busy_probability
        if busy >= 1:
            return BatchQueuePrediction(replicas, 0.0, math.inf, policy)
        accepted = at(found.attempt_rate_per_s)

        def share_within(t_ms: float) -> float:
            level = retried_response_time_cdf(
                t_ms,
                busy,
                accepted.cdf,
                delays.request_delay_ms,
                delays.reply_delay_ms,
                delays.retry_delay_ms,
                delays.retries,
            )
            return float(level)

        wanted = objective.percentile / 100
        answered = 1.0 if delays.retries is None else 1 - busy ** (delays.retries + 1)
        percentile_ms = math.inf
        if wanted < answered:
            first_ms = delays.request_delay_ms + accepted.response_percentile_ms(
                objective.percentile
            )
            percentile_ms = _least_time(share_within, wanted, first_ms)
        power_w = accepted.mean_power_w
        return BatchQueuePrediction(
            replicas=replicas,
            service_level=share_within(objective.response_time_ms),
            percentile_ms=percentile_ms,
            policy=policy,
            mean_power_w=None if power_w is None else replicas * power_w,
            busy_probability=busy,
        )

    def _room(self, objective: ServiceLevelObjective, policy: BatchingPolicy) -> int:
        if self.waiting_room is not None:
            return self.waiting_room
        size = policy.max_batch_size
        left_ms = objective.response_time_ms - self.delays.request_delay_ms
        batches = math.floor(left_ms / float(self.profile.latency_ms[size - 1]) + 1e-9)
        return size * max(1, batches - 1)


def _least_time(share_within: Callable[[float], float], wanted: float, low: float) -> float:
    """Find the least time within which the wanted share is answered; `low` may be just short."""
    high = low
    while share_within(high) < wanted:
        low, high = high, 2 * high
    if high == low:
        return high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if share_within(middle) >= wanted else (middle, high)
    return high
