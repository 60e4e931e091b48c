"""The control limit and max wait of least power that keep a service level under MMPP arrivals.

Under bursts, low control limits with long waits are better than what the rate of the bursts would
suggest: batches of a burst fill while the device is busy, whatever the limit, and in a lull a low
limit lets requests go.
"""

import math
from dataclasses import dataclass

from policy.batching_policy import BatchingPolicy
from policy.mmpp import Mmpp
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.mmpp import MmppEvaluation, evaluate_mmpp

_ROUNDING = 1e-10
# The longest wait is found to within this fraction of the response time.
_RESOLUTION = 1 / 64
# Where the late share is so close to the allowed one, the wait is long enough.
_CLOSE_LATENESS = 0.97
# Relative saving below which another policy is not worth the change.
_MIN_SAVING = 3e-3
# Where hardly any policy keeps the percentile, a late share will do that exceeds the least by this
# fraction of the allowed one.
_CLOSE_TO_LEAST = 0.05
# In a longer queue, requests are late anyway under any SLA that leaves a choice.
_MAX_WAITING_ROOM = 512
# Steps to other control limits, as fractions of the limit.
_STEPS = (1 / 3, 1 / 8)


@dataclass(frozen=True, eq=False)
class MmppSolution:
    """A policy, and what it achieves under MMPP arrivals.

    Attributes
    ----------
    policy : BatchingPolicy
    evaluation : MmppEvaluation
    meets_sla : bool
        Whether the objective's percentile holds, refused requests counted as late.
    """

    policy: BatchingPolicy
    evaluation: MmppEvaluation
    meets_sla: bool


def solve(
    profile: Profile,
    process: Mmpp,
    objective: ServiceLevelObjective,
    *,
    waiting_room: int | None = None,
    start: BatchingPolicy | None = None,
    margin: float = 0.0,
) -> MmppSolution:
    """Find the control limit and max wait of least power whose percentile holds.

    Parameters
    ----------
    profile : Profile
        If it has no energy, the policy of least device busy time is sought instead.
    process : Mmpp
        The arrivals.
    objective : ServiceLevelObjective
    waiting_room : int, optional
        Requests that may wait; the rest is refused. It is rounded down to a multiple of the largest
        batch, but not to none, and taken as at most 512. Any number if not given.
    start : BatchingPolicy, optional
        A control limit with a max wait at which the search begins, such as the policy for Poisson
        arrivals. It is kept unless it misses the percentile or another saves power.
    margin : float
        Fraction of the late requests that the objective allows to leave unused, because the process
        is only an estimate; from 0 to below 1.

    Returns
    -------
    MmppSolution
        If no policy was found that keeps the percentile with its margin, one of little power among
        those with nearly as many requests in time as if the device starts whenever it is free. Not
        all control limits are tried, so the power is not the very least.

    Raises
    ------
    InfeasibleError
        Without a waiting room: the device cannot keep up, or bursts make the queue longer than is
        computed.
    """
    search = _Search(profile.serial(), process, objective, waiting_room, margin)
    return search.least_power(start)


class _Search:
    def __init__(
        self,
        profile: Profile,
        process: Mmpp,
        objective: ServiceLevelObjective,
        waiting_room: int | None,
        margin: float,
    ) -> None:
        self._profile = profile
        self._process = process
        self._objective = objective
        self._max_batch_size = size = profile.best_batch_size
        self._waiting_room = waiting_room
        if waiting_room is not None:
            self._waiting_room = size * max(min(waiting_room, _MAX_WAITING_ROOM) // size, 1)
        self._longest_ms = max(0.0, objective.response_time_ms - float(profile.latency_ms[0]))
        self._allowed = objective.late_share_allowed
        self._target = (1 - margin) * self._allowed
        self._late_shares: dict[tuple[int, float], float] = {}
        self._evaluations: dict[tuple[int, float], MmppEvaluation] = {}

    def least_power(self, start: BatchingPolicy | None) -> MmppSolution:
        size = self._max_batch_size
        least = self._late_share(1, 0.0)
        self._target = max(self._target, least + _CLOSE_TO_LEAST * self._allowed)
        best = (1, 0.0)
        first = self._likely_limit()
        if start is not None and start.max_wait_ms is not None and 1 < start.control_limit <= size:
            first = start.control_limit
            if self._late_share(first, start.max_wait_ms) <= self._target:
                best = (first, start.max_wait_ms)
        seen = {1}

        def improve(limit: int) -> bool:
            nonlocal best
            if limit in seen or not 1 < limit <= size:
                return False
            seen.add(limit)
            wait_ms = self._longest_wait_cheaper_than((1 - _MIN_SAVING) * self._cost(*best), limit)
            if wait_ms is not None:
                best = limit, wait_ms
            return wait_ms is not None

        # The power has more than one least: a high limit with a short wait, a low one with a long.
        limit = first
        while limit > 1:
            improve(limit)
            limit -= max(1, round(limit * _STEPS[0]))
        for fraction in _STEPS:
            for sign in (-1, 1):
                while improve(best[0] + sign * max(1, round(best[0] * fraction))):
                    pass
        return self._solution(*best)

    def _likely_limit(self) -> int:
        """Return the arrivals in half a response time, at least 2 and at most a full batch."""
        arrivals = 1e-3 * self._process.mean_rate_per_s * self._objective.response_time_ms / 2
        return max(2, min(round(arrivals), self._max_batch_size))

    def _policy(self, limit: int, wait_ms: float) -> BatchingPolicy:
        wait = wait_ms if limit > 1 else None
        return BatchingPolicy.from_control_limit(limit, self._max_batch_size, wait)

    def _solution(self, limit: int, wait_ms: float) -> MmppSolution:
        in_time = self._late_share(limit, wait_ms) <= self._allowed + _ROUNDING
        return MmppSolution(
            self._policy(limit, wait_ms), self._evaluate(limit, wait_ms), meets_sla=in_time
        )

    def _evaluate(self, limit: int, wait_ms: float) -> MmppEvaluation:
        key = (limit, wait_ms)
        if key not in self._evaluations:
            self._evaluations[key] = evaluate_mmpp(
                self._profile,
                self._policy(limit, wait_ms),
                self._process,
                waiting_room=self._waiting_room,
            )
        return self._evaluations[key]

    def _cost(self, limit: int, wait_ms: float) -> float:
        evaluation = self._evaluate(limit, wait_ms)
        power_w = evaluation.mean_power_w
        return evaluation.device_busy_fraction if power_w is None else power_w

    def _late_share(self, limit: int, wait_ms: float) -> float:
        """Return the fraction of requests late or refused."""
        key = (limit, wait_ms)
        if key not in self._late_shares:
            evaluation = self._evaluate(limit, wait_ms)
            level = evaluation.service_level(self._objective.response_time_ms)
            self._late_shares[key] = 1 - (1 - evaluation.full_probability) * level
        return self._late_shares[key]

    def _longest_wait_cheaper_than(self, cost: float, limit: int) -> float | None:
        """Return the longest wait in time at a limit, to the resolution, if it costs less."""
        low, high = 0.0, self._longest_ms
        # Longer waits cost less, so the cost of the longest in time is known from below.
        if self._cost(limit, high) >= cost:
            return None
        if self._late_share(limit, high) <= self._target:
            return high
        found: float | None = None
        known_low = -math.inf  # logarithm of the late share at `low`, over the target
        known_high = math.log(self._late_share(limit, high) / self._target)
        halve = True
        while high - low > _RESOLUTION * self._objective.response_time_ms:
            width = high - low
            middle = low + width / 2
            if not halve and math.isfinite(known_low):
                middle = low + width * min(max(-known_low / (known_high - known_low), 0.1), 0.9)
            if self._cost(limit, middle) >= cost:
                low, known_low, halve = middle, -math.inf, True
                continue
            excess = math.log(max(self._late_share(limit, middle), 1e-12) / self._target)
            if excess <= 0:
                found, low, known_low = middle, middle, excess
                if excess > math.log(_CLOSE_LATENESS):
                    break
            else:
                high, known_high = middle, excess
            halve = high - low > width / 2
        return found
