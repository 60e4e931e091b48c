"""The policy of least power that keeps a percentile of the response time.

Searched over control limits *and* max waits: with the queue length alone, the last request of a
lull would wait for strangers. At a given control limit, a longer wait makes batches larger, so the
power falls; and the percentile holds up to some wait, then no more. So one control limit is settled
by the longest wait that keeps the percentile, and most are ruled out by a single look: where the
shortest wait that would save anything already breaks it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from policy.batching_policy import BatchingPolicy
from policy.profile import Profile
from policy.response_time import Evaluation, evaluate
from sojourn.errors import InfeasibleError, InvalidInputError

_WORTHWHILE = 1e-3
"""Relative saving below which another control limit is not looked into."""
_COARSE, _FINE = 1 / 64, 1 / 2048
"""The longest wait is found to within these fractions of the response time: first, and at last."""


@dataclass(frozen=True)
class ConstrainedSolution:
    """A policy under an SLA, and what it does.

    Attributes
    ----------
    policy : BatchingPolicy
        The policy of least power whose percentile holds; if there is none, that of the least
        percentile.
    meets_sla : bool
        Whether the percentile holds.
    percentile_ms : float
        The percentile of the response time that the policy reaches.
    service_level : float
        Fraction of the requests that are answered in time.
    mean_response_ms : float
        Mean response time.
    mean_power_w : float or None
        None if the profile has no energy; the least device busy time was sought then.
    device_busy_fraction : float
        Fraction of the time in which a batch is in service.
    """

    policy: BatchingPolicy
    meets_sla: bool
    percentile_ms: float
    service_level: float
    mean_response_ms: float
    mean_power_w: float | None
    device_busy_fraction: float


def solve_constrained(
    profile: Profile,
    arrival_rate_per_s: float,
    *,
    response_time_ms: float,
    percentile: float,
) -> ConstrainedSolution:
    """Find the policy of least power that keeps a percentile of the response time.

    Parameters
    ----------
    profile : Profile
        Where it has no energy, the least device busy time is sought instead of the least power.
    arrival_rate_per_s : float
        Poisson arrivals, requests per second.
    response_time_ms, percentile : float
        The SLA: `percentile` percent of the requests within `response_time_ms`.

    Returns
    -------
    ConstrainedSolution
        Its power is the least where power falls with the wait, and the percentile holds up to some
        wait. That is not proved; in the tests it is within 0.3% of a full search.

    Raises
    ------
    InvalidInputError
        `percentile` is not between 0 and 100, or another argument is not a positive number.
    InfeasibleError
        No batch is as short as `response_time_ms`, or the device cannot keep up.
    """
    _check(profile, response_time_ms, percentile)
    search = _Search(profile, arrival_rate_per_s, response_time_ms, percentile / 100)
    policy, evaluation = search.least_power()
    reached_ms = evaluation.response_percentile_ms(percentile)
    return ConstrainedSolution(
        policy=policy,
        meets_sla=search.in_time(evaluation),
        percentile_ms=reached_ms,
        service_level=evaluation.service_level(response_time_ms),
        mean_response_ms=evaluation.mean_response_ms,
        mean_power_w=evaluation.mean_power_w,
        device_busy_fraction=evaluation.device_busy_fraction,
    )


def _check(profile: Profile, response_time_ms: float, percentile: float) -> None:
    if not 0 < percentile < 100:
        raise InvalidInputError(f"percentile: must be between 0 and 100, not {percentile:g}")
    if not 0 < response_time_ms < np.inf:
        raise InvalidInputError(
            f"response_time_ms: must be above 0 and finite, not {response_time_ms:g}"
        )
    shortest_ms = float(profile.latency_ms[0])
    if response_time_ms < shortest_ms:
        raise InfeasibleError(
            f"response time {response_time_ms:g} ms: the shortest batch of {profile.model} on "
            f"{profile.device} takes {shortest_ms:g} ms"
        )


class _Search:
    """Policies by control limit and max wait, under one SLA."""

    def __init__(
        self,
        profile: Profile,
        arrival_rate_per_s: float,
        response_time_ms: float,
        probability: float,
    ) -> None:
        self._profile = profile
        self._batch_times_ms = profile.latency_ms
        self._arrival_rate_per_s = arrival_rate_per_s
        self._response_time_ms = response_time_ms
        self._probability = probability
        # The batch size of the highest throughput: larger ones would only cost capacity.
        throughput = np.arange(1, profile.max_batch_size + 1) / profile.latency_ms
        best = np.flatnonzero(throughput >= throughput.max() * (1 - 1e-12))
        self._max_batch_size = int(best[-1]) + 1

    def policy(self, control_limit: int, max_wait_ms: float | None) -> BatchingPolicy:
        return BatchingPolicy.from_control_limit(control_limit, self._max_batch_size, max_wait_ms)

    def evaluate(self, control_limit: int, max_wait_ms: float | None) -> Evaluation:
        policy = self.policy(control_limit, max_wait_ms)
        return evaluate(self._profile, policy, self._arrival_rate_per_s)

    def cost(self, evaluation: Evaluation) -> float:
        power_w = evaluation.mean_power_w
        return evaluation.device_busy_fraction if power_w is None else power_w

    def in_time(self, evaluation: Evaluation) -> bool:
        # A target met exactly is met, whatever the rounding.
        return evaluation.service_level(self._response_time_ms) >= self._probability - 1e-10

    def _in_time(self, control_limit: int, max_wait_ms: float) -> bool:
        evaluation = self.evaluate(control_limit, max_wait_ms)
        # A batch below the control limit was started by a timer: its oldest request has waited at
        # least that long. Often that alone is too many, and is known without the distribution.
        late = max_wait_ms + self._batch_times_ms[: control_limit - 1] > (
            self._response_time_ms * (1 + 1e-9)
        )
        oldest = float(evaluation.batch_size_probabilities[1:control_limit][late].sum())
        if oldest > (1 - self._probability + 1e-9) * evaluation.mean_batch_size:
            return False
        return self.in_time(evaluation)

    def least_power(self) -> tuple[BatchingPolicy, Evaluation]:
        limit, wait, best = self._soonest()
        if not self.in_time(best):
            return self.policy(limit, wait), best
        seen = {1}

        def improve(other: int) -> bool:
            nonlocal limit, wait, best
            if other in seen or not 1 < other <= self._max_batch_size:
                return False
            seen.add(other)
            found = self._longest_wait(other, self.cost(best) * (1 - _WORTHWHILE))
            if found is not None:
                limit, (wait, best) = other, found
            return found is not None

        likely = 1e-3 * self._arrival_rate_per_s * self._response_time_ms
        for other in sorted(self._spread_limits(), key=lambda other: abs(other - likely)):
            improve(other)
        step = max(1, limit // 4)
        while step:
            while improve(limit + step) or improve(limit - step):
                pass
            step //= 2
        if wait is not None:
            longer = wait + _COARSE * self._response_time_ms
            wait = self._bisect(wait, longer, lambda w: self._in_time(limit, w), _FINE)
            best = self.evaluate(limit, wait)
        return self.policy(limit, wait), best

    def _spread_limits(self) -> list[int]:
        """Spread control limits over all sizes, by about a third from one to the next."""
        limits = [2]
        while limits[-1] < self._max_batch_size:
            limits.append(min(limits[-1] + max(1, limits[-1] // 3), self._max_batch_size))
        return limits

    def _longest_wait(self, limit: int, cost: float) -> tuple[float | None, Evaluation] | None:
        """Find the longest wait that keeps the SLA, if it costs less than `cost`."""
        evaluation = self.evaluate(limit, None)
        if self.cost(evaluation) >= cost:
            return None
        # Beyond twice the response time, few timers are left to run off.
        longest = 2 * self._response_time_ms
        if self.cost(self.evaluate(limit, longest)) >= cost:
            return (None, evaluation) if self.in_time(evaluation) else None
        shortest = self._turn(lambda wait: self.cost(self.evaluate(limit, wait)) - cost, longest)
        if not self._in_time(limit, shortest):
            return None
        if self.in_time(evaluation):
            return None, evaluation
        wait = self._bisect(shortest, longest, lambda wait: self._in_time(limit, wait), _COARSE)
        return wait, self.evaluate(limit, wait)

    def _turn(self, falling: Callable[[float], float], longest: float) -> float:
        """Find a wait just above that where a function falls below 0; 0 if it is there already."""
        if falling(0.0) < 0:
            return 0.0
        resolution = _FINE * self._response_time_ms
        return resolution + float(brentq(falling, 0.0, longest, xtol=resolution, rtol=1e-6))

    def _bisect(
        self, low: float, high: float, holds: Callable[[float], bool], resolution: float
    ) -> float:
        """Find the last place from `low` to `high` where `holds` is true, as it is at `low`."""
        while high - low > resolution * self._response_time_ms:
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

    def _soonest(self) -> tuple[int, float | None, Evaluation]:
        """Find a policy that is in time; if there is none, that of the least percentile.

        To wait at all is rarely sooner. It can be where a batch of one takes almost as long as a
        full one: then a request that comes just after a start waits for the whole of it.
        """
        limit = 1
        wait: float | None = None
        best = self.evaluate(1, None)
        if self.in_time(best):
            return limit, wait, best
        percentile = 100 * self._probability
        percentile_ms = best.response_percentile_ms(percentile)
        ways: list[list[tuple[int, float | None]]] = [
            [(other, None) for other in range(2, self._max_batch_size + 1)],
            [
                (self._max_batch_size, share * percentile_ms)
                for share in (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
            ],
        ]
        for way in ways:
            worse = 0
            for other in way:
                evaluation = self.evaluate(*other)
                if evaluation.service_level(percentile_ms) > self._probability + 1e-10:
                    percentile_ms = evaluation.response_percentile_ms(percentile)
                    (limit, wait), best = other, evaluation
                    worse = 0
                elif worse:
                    break
                else:
                    worse += 1
                if self.in_time(best):
                    return limit, wait, best
        return limit, wait, best
