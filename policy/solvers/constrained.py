"""The policy of least power that keeps a percentile of the response time.

Searched over control limits *and* max waits: with the queue length alone, the last request of a
lull would wait for strangers. At a given control limit, a longer wait makes batches larger, so the
power falls; and the percentile holds up to some wait, then no more. So one control limit is settled
by the longest wait that keeps the percentile, and most are ruled out by a single look: where the
shortest wait that would save anything already breaks it.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import Evaluation, evaluate

_WORTHWHILE = 1e-3
"""Relative saving below which another control limit is not looked into."""
_RESOLUTION, _NEAR = 1 / 1024, 1 / 256
"""The longest wait is found to within the one, and at first looked for within the other; both are
fractions of the response time."""
_CLOSE = 0.985
"""With that near, the search for it ends where so many of the requests are late that may be."""
_ROUNDING = 1e-10
"""A target met exactly is met, whatever the rounding."""


@dataclass(frozen=True)
class ConstrainedSolution:
    """A policy under an SLA, and what it does.

    Attributes
    ----------
    policy : BatchingPolicy
        The policy of least power whose percentile holds; if there is none, that of the least
        percentile.
    evaluation : Evaluation
        Of the policy.
    objective : ServiceLevelObjective
        The SLA.
    meets_sla : bool
        Whether the percentile holds.
    """

    policy: BatchingPolicy
    evaluation: Evaluation
    objective: ServiceLevelObjective
    meets_sla: bool

    @cached_property
    def percentile_ms(self) -> float:
        """The percentile of the response time that the policy reaches."""
        return self.evaluation.response_percentile_ms(self.objective.percentile)

    @property
    def service_level(self) -> float:
        """Fraction of the requests that are answered in time."""
        return self.evaluation.service_level(self.objective.response_time_ms)

    @property
    def mean_response_ms(self) -> float:
        """Mean response time."""
        return self.evaluation.mean_response_ms

    @property
    def mean_power_w(self) -> float | None:
        """None if the profile has no energy; the least device busy time was sought then."""
        return self.evaluation.mean_power_w

    @property
    def device_busy_fraction(self) -> float:
        """Fraction of the time in which a batch is in service."""
        return self.evaluation.device_busy_fraction


def solve_constrained(
    profile: Profile,
    arrival_rate_per_s: float,
    *,
    response_time_ms: float,
    percentile: float,
    start: BatchingPolicy | None = None,
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
    start : BatchingPolicy, optional
        The policy of a rate close by. It is then searched from there, several times as fast, and
        over all policies only where that is not in time with any wait.

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
    objective = ServiceLevelObjective(response_time_ms, percentile)
    search = _Search(profile, arrival_rate_per_s, objective)
    policy, evaluation = search.least_power(start)
    return ConstrainedSolution(policy, evaluation, objective, search.in_time(evaluation))


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
        self, profile: Profile, arrival_rate_per_s: float, objective: ServiceLevelObjective
    ) -> None:
        self._profile = profile
        self._arrival_rate_per_s = arrival_rate_per_s
        self._response_time_ms = objective.response_time_ms
        self._probability = objective.percentile / 100
        # Beyond twice the response time, few timers are left to run off.
        self._longest_ms = 2 * objective.response_time_ms
        self._max_batch_size = profile.best_batch_size  # larger ones would only cost capacity
        self._evaluations: dict[tuple[int, float | None], Evaluation] = {}
        self._latenesses: dict[tuple[int, float], float] = {}

    def policy(self, control_limit: int, max_wait_ms: float | None) -> BatchingPolicy:
        return BatchingPolicy.from_control_limit(control_limit, self._max_batch_size, max_wait_ms)

    def evaluate(self, control_limit: int, max_wait_ms: float | None) -> Evaluation:
        key = (control_limit, max_wait_ms)
        if key not in self._evaluations:
            self._evaluations[key] = evaluate(
                self._profile, self.policy(*key), self._arrival_rate_per_s
            )
        return self._evaluations[key]

    def cost(self, evaluation: Evaluation) -> float:
        power_w = evaluation.mean_power_w
        return evaluation.device_busy_fraction if power_w is None else power_w

    def in_time(self, evaluation: Evaluation) -> bool:
        return evaluation.service_level(self._response_time_ms) >= self._probability - _ROUNDING

    def _lateness(self, control_limit: int, max_wait_ms: float) -> float:
        """Late requests over those that may be late; where that is above 1, it may be more yet."""
        key = (control_limit, max_wait_ms)
        if key not in self._latenesses:
            self._latenesses[key] = self._evaluate_lateness(*key)
        return self._latenesses[key]

    def _evaluate_lateness(self, control_limit: int, max_wait_ms: float) -> float:
        evaluation = self.evaluate(control_limit, max_wait_ms)
        # A batch below the control limit was started by a timer: its oldest request has waited at
        # least that long. Often that alone is too many, and is known without the distribution.
        late = max_wait_ms + self._profile.latency_ms[: control_limit - 1] > (
            self._response_time_ms * (1 + 1e-9)
        )
        oldest = float(evaluation.batch_size_probabilities[1:control_limit][late].sum())
        allowed = 1 - self._probability
        if oldest > (allowed + 1e-9) * evaluation.mean_batch_size:
            return oldest / (allowed * evaluation.mean_batch_size)
        return (1 - evaluation.service_level(self._response_time_ms)) / allowed

    def _in_time(self, control_limit: int, max_wait_ms: float) -> bool:
        allowed = 1 - self._probability
        return self._lateness(control_limit, max_wait_ms) * allowed <= allowed + _ROUNDING

    def least_power(self, start: BatchingPolicy | None) -> tuple[BatchingPolicy, Evaluation]:
        near = None if start is None else self._from(start)
        limit, wait, best = near or self._soonest(start)
        if not self.in_time(best):
            return self.policy(limit, wait), best
        seen = {1, limit}

        def improve(other: int) -> bool:
            nonlocal limit, wait, best
            if other in seen or not 1 < other <= self._max_batch_size:
                return False
            seen.add(other)
            found = self._longest_wait(other, self.cost(best) * (1 - _WORTHWHILE), wait)
            if found is not None:
                limit, (wait, best) = other, found
            return found is not None

        if near is None:
            for other in self._spread_limits():
                improve(other)
        step = max(1, limit // (8 if near else 4))
        while step:
            while improve(limit + step) or improve(limit - step):
                pass
            step //= 2
        return self.policy(limit, wait), best

    def _spread_limits(self) -> list[int]:
        """Spread control limits over all sizes, by about a third each; the likeliest first."""
        limits = [2]
        while limits[-1] < self._max_batch_size:
            limits.append(min(limits[-1] + max(1, limits[-1] // 3), self._max_batch_size))
        likely = 1e-3 * self._arrival_rate_per_s * self._response_time_ms
        return sorted(limits, key=lambda limit: abs(limit - likely))

    def _from(self, start: BatchingPolicy) -> tuple[int, float | None, Evaluation] | None:
        """Find the longest wait in time for the control limit of `start`, if near its wait."""
        limit, wait = start.control_limit, start.max_wait_ms
        if not 1 < limit <= self._max_batch_size:
            return None
        if wait is None:
            evaluation = self.evaluate(limit, None)
            return (limit, None, evaluation) if self.in_time(evaluation) else None
        longer = self._longest_ms
        for share in (0.0, _NEAR, 4 * _NEAR, 16 * _NEAR):
            shorter = max(0.0, wait - share * self._response_time_ms)
            if self._in_time(limit, shorter):
                return limit, *self._reach(limit, shorter, longer)
            longer = shorter
        return None

    def _longest_wait(
        self, limit: int, cost: float, near: float | None
    ) -> tuple[float | None, Evaluation] | None:
        """Find the longest wait that keeps the SLA, if it costs less than `cost`."""
        endless = self.evaluate(limit, None)
        if self.cost(endless) >= cost:
            return None
        shortest = self._turn(limit, cost, self._longest_ms if near is None else near)
        if shortest is None:
            return (None, endless) if self.in_time(endless) else None
        if not self._in_time(limit, shortest):
            return None
        return self._reach(limit, shortest, self._longest_ms)

    def _turn(self, limit: int, cost: float, near: float) -> float | None:
        """Find a wait just above that from which on the cost is less; None if it never is."""

        def more(wait: float) -> float:
            return self.cost(self.evaluate(limit, wait)) - cost

        resolution, step = _RESOLUTION * self._response_time_ms, self._response_time_ms / 16
        low = high = near
        while low > 0 and more(low) < 0:
            low, high, step = max(0.0, low - step), low, 2 * step
        while high < self._longest_ms and more(high) >= 0:
            low, high, step = high, min(high + step, self._longest_ms), 2 * step
        if more(low) < 0:
            return 0.0
        if more(high) >= 0:
            return None
        return resolution + float(brentq(more, low, high, xtol=resolution, rtol=1e-6))

    def _reach(self, limit: int, low: float, high: float) -> tuple[float | None, Evaluation]:
        """Find the longest wait in time from `low`, which is, to `high`, likely close to `low`."""
        step = _NEAR * self._response_time_ms
        while low + step < high and self._in_time(limit, low + step):
            low, step = low + step, 4 * step
        wait = self._last_in_time(limit, low, min(low + step, high))
        endless = self.evaluate(limit, None)
        if wait == self._longest_ms and self.in_time(endless):
            return None, endless
        return wait, self.evaluate(limit, wait)

    def _last_in_time(self, limit: int, low: float, high: float) -> float:
        """Find the longest wait in time from `low`, which is, up to `high`.

        By the secant of log lateness where that is smooth, by halves where it jumps.
        """
        if self._in_time(limit, high):
            return high
        resolution, near = _RESOLUTION * self._response_time_ms, _NEAR * self._response_time_ms
        halve = False
        while (width := high - low) > resolution:
            if width < 1.01 * near and self._lateness(limit, low) > _CLOSE:
                break
            middle = (low + high) / 2
            if not halve:
                below = -math.log(max(self._lateness(limit, low), 1e-3))
                above = math.log(self._lateness(limit, high))
                root = low + width * below / (below + above)
                middle = min(max(root, low + resolution), high) - resolution / 4
            if self._in_time(limit, middle):
                low = middle
            else:
                high = middle
            halve = high - low > width / 2
        return low

    def _soonest(self, start: BatchingPolicy | None) -> tuple[int, float | None, Evaluation]:
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
        ]
        if start is None or start.max_wait_ms is not None:
            shares = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
            ways.append([(self._max_batch_size, share * percentile_ms) for share in shares])
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
