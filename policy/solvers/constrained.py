"""The policy of least power whose response-time percentile holds.

The search is over control limits *and* max waits: with the queue length alone, the last request of
a lull waits until enough others come. At a given control limit, a longer wait makes batches larger,
so the power falls; and the percentile holds up to some wait, and beyond it no more. So one control
limit is settled by the longest wait that keeps the percentile, and most are ruled out by a single
look: the shortest wait that would save anything already breaks it.
"""

import math

from scipy.optimize import brentq

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import Evaluation, evaluate
from policy.solution import Solution, meets_sla

_MIN_SAVING = 1e-3
"""Relative saving below which another control limit is not looked into."""
_RESOLUTION, _COARSE_STEP = 1 / 1024, 1 / 256
"""The longest wait is found to within the one, after steps of the other; both are fractions of the
response time."""
_CLOSE_LATENESS = 0.985
"""Within a coarse step, the search for the longest wait ends where the late share is this close to
the allowed one."""
_ROUNDING = 1e-10
"""A target met exactly is met, whatever the rounding."""
_SHORT_WAITS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
"""Waits tried where none is known to be in time, as fractions of the percentile without waiting."""

# A control limit, its max wait, and their evaluation.
_Candidate = tuple[int, float | None, Evaluation]


def solve(
    profile: Profile,
    arrival_rate_per_s: float,
    objective: ServiceLevelObjective,
    *,
    start: BatchingPolicy | None = None,
) -> Solution:
    """Find the policy of least power whose percentile of the response time holds.

    Parameters
    ----------
    profile : Profile
        If it has no energy, the policy of least device busy time is sought instead.
    arrival_rate_per_s : float
        Poisson arrivals, requests per second.
    objective : ServiceLevelObjective
    start : BatchingPolicy, optional
        The policy of a similar rate. The search then begins there, which is several times as fast,
        and covers all policies only if no wait close to the one of `start` is in time.

    Returns
    -------
    Solution
        If no policy keeps the percentile, the one of the least percentile; `meets_sla` is False.
        The power is the least if power falls with the wait, and the percentile holds up to some
        wait. That is not proved; in the tests the power is within 0.3% of a full search.

    Raises
    ------
    InvalidInputError
        The arrival rate is not a finite number above 0.
    InfeasibleError
        No batch is as short as the response time, or the device cannot keep up.
    """
    shortest_ms = float(profile.latency_ms[0])
    if objective.response_time_ms < shortest_ms:
        raise InfeasibleError(
            f"response time {objective.response_time_ms:g} ms: the shortest batch of "
            f"{profile.model} on {profile.device} takes {shortest_ms:g} ms"
        )
    search = _Search(profile, arrival_rate_per_s, objective)
    limit, wait, evaluation = search.least_power(start)
    return Solution(
        profile=profile,
        arrival_rate_per_s=arrival_rate_per_s,
        objective=objective,
        policy=search.policy(limit, wait),
        _evaluation=evaluation,
    )


class _Search:
    """Policies by control limit and max wait, under one service level objective."""

    def __init__(
        self, profile: Profile, arrival_rate_per_s: float, objective: ServiceLevelObjective
    ) -> None:
        self._profile = profile
        self._arrival_rate_per_s = arrival_rate_per_s
        self._objective = objective
        self._response_time_ms = objective.response_time_ms
        self._probability = objective.percentile / 100
        # Beyond twice the response time, few timers would ever run off.
        self._max_wait_ms = 2 * objective.response_time_ms
        self._max_batch_size = profile.best_batch_size  # larger ones would only cost capacity
        self._evaluations: dict[tuple[int, float | None], Evaluation] = {}
        self._lateness_ratios: dict[tuple[int, float], float] = {}

    def policy(self, control_limit: int, max_wait_ms: float | None) -> BatchingPolicy:
        return BatchingPolicy.from_control_limit(control_limit, self._max_batch_size, max_wait_ms)

    def least_power(self, start: BatchingPolicy | None) -> _Candidate:
        """Find the policy of least power that is in time, or else the one of least percentile."""
        near = None if start is None else self._longest_wait_near(start)
        limit, wait, best = near or self._least_percentile(start)
        if not self._meets_sla(best):
            return limit, wait, best
        seen = {1, limit}

        def improve(other: int) -> bool:
            nonlocal limit, wait, best
            if other in seen or not 1 < other <= self._max_batch_size:
                return False
            seen.add(other)
            found = self._longest_wait_cheaper_than(
                self._cost(best) * (1 - _MIN_SAVING), other, wait
            )
            if found is not None:
                limit, wait, best = found
            return found is not None

        if near is None:
            for other in self._spread_control_limits():
                improve(other)
        step = max(1, limit // (8 if near else 4))
        while step:
            while improve(limit + step) or improve(limit - step):
                pass
            step //= 2
        return limit, wait, best

    def _evaluate(self, control_limit: int, max_wait_ms: float | None) -> Evaluation:
        key = (control_limit, max_wait_ms)
        if key not in self._evaluations:
            self._evaluations[key] = evaluate(
                self._profile, self.policy(*key), self._arrival_rate_per_s
            )
        return self._evaluations[key]

    def _cost(self, evaluation: Evaluation) -> float:
        power_w = evaluation.mean_power_w
        return evaluation.device_busy_fraction if power_w is None else power_w

    def _meets_sla(self, evaluation: Evaluation) -> bool:
        return meets_sla(evaluation, self._objective)

    def _in_time(self, control_limit: int, max_wait_ms: float) -> bool:
        allowed = self._objective.late_share_allowed
        return self._lateness_ratio(control_limit, max_wait_ms) * allowed <= allowed + _ROUNDING

    def _lateness_ratio(self, control_limit: int, max_wait_ms: float) -> float:
        """Return the late share over the allowed one; above 1, a lower bound of it."""
        key = (control_limit, max_wait_ms)
        if key not in self._lateness_ratios:
            self._lateness_ratios[key] = self._compute_lateness_ratio(*key)
        return self._lateness_ratios[key]

    def _compute_lateness_ratio(self, control_limit: int, max_wait_ms: float) -> float:
        evaluation = self._evaluate(control_limit, max_wait_ms)
        # A batch below the control limit was started by a timer: its oldest request has waited at
        # least that long. Often these alone are too many, which saves computing the distribution.
        late = max_wait_ms + self._profile.latency_ms[: control_limit - 1] > (
            self._response_time_ms * (1 + 1e-9)
        )
        oldest = float(evaluation.batch_size_probabilities[1:control_limit][late].sum())
        allowed = self._objective.late_share_allowed
        if oldest > (allowed + 1e-9) * evaluation.mean_batch_size:
            return oldest / (allowed * evaluation.mean_batch_size)
        return (1 - evaluation.service_level(self._response_time_ms)) / allowed

    def _spread_control_limits(self) -> list[int]:
        """Return control limits that grow by about a third each, the likeliest first."""
        limits = [2]
        while limits[-1] < self._max_batch_size:
            limits.append(min(limits[-1] + max(1, limits[-1] // 3), self._max_batch_size))
        likely = 1e-3 * self._arrival_rate_per_s * self._response_time_ms
        return sorted(limits, key=lambda limit: abs(limit - likely))

    def _longest_wait_near(self, start: BatchingPolicy) -> _Candidate | None:
        """Find the longest wait in time at the control limit of `start`, if it is near its wait."""
        limit, wait = start.control_limit, start.max_wait_ms
        if not 1 < limit <= self._max_batch_size:
            return None
        if wait is None:
            evaluation = self._evaluate(limit, None)
            return (limit, None, evaluation) if self._meets_sla(evaluation) else None
        longer = self._max_wait_ms
        for share in (0.0, _COARSE_STEP, 4 * _COARSE_STEP, 16 * _COARSE_STEP):
            shorter = max(0.0, wait - share * self._response_time_ms)
            if self._in_time(limit, shorter):
                return self._longest_wait_between(limit, shorter, longer)
            longer = shorter
        return None

    def _longest_wait_cheaper_than(
        self, cost: float, limit: int, near: float | None
    ) -> _Candidate | None:
        """Find the longest wait in time at a control limit, if it costs less than `cost`."""
        endless = self._evaluate(limit, None)
        if self._cost(endless) >= cost:
            return None
        shortest = self._shortest_wait_cheaper_than(
            cost, limit, self._max_wait_ms if near is None else near
        )
        if shortest is None:
            return (limit, None, endless) if self._meets_sla(endless) else None
        if not self._in_time(limit, shortest):
            return None
        return self._longest_wait_between(limit, shortest, self._max_wait_ms)

    def _shortest_wait_cheaper_than(self, cost: float, limit: int, near: float) -> float | None:
        """Find the shortest wait that costs less than `cost`; None if no finite one does."""

        def excess(wait: float) -> float:
            return self._cost(self._evaluate(limit, wait)) - cost

        resolution, step = _RESOLUTION * self._response_time_ms, self._response_time_ms / 16
        low = high = near
        while low > 0 and excess(low) < 0:
            low, high, step = max(0.0, low - step), low, 2 * step
        while high < self._max_wait_ms and excess(high) >= 0:
            low, high, step = high, min(high + step, self._max_wait_ms), 2 * step
        if excess(low) < 0:
            return 0.0
        if excess(high) >= 0:
            return None
        return resolution + float(brentq(excess, low, high, xtol=resolution, rtol=1e-6))

    def _longest_wait_between(self, limit: int, low: float, high: float) -> _Candidate:
        """Find the longest wait in time from `low`, which is in time, to `high`."""
        step = _COARSE_STEP * self._response_time_ms
        while low + step < high and self._in_time(limit, low + step):
            low, step = low + step, 4 * step
        wait = self._bisect_longest_wait(limit, low, min(low + step, high))
        endless = self._evaluate(limit, None)
        if wait == self._max_wait_ms and self._meets_sla(endless):
            return limit, None, endless
        return limit, wait, self._evaluate(limit, wait)

    def _bisect_longest_wait(self, limit: int, low: float, high: float) -> float:
        """Return the longest wait in time from `low`, which is in time, up to `high`.

        Follow the secant of the logarithm of the lateness where it is smooth, halve where it jumps.
        """
        if self._in_time(limit, high):
            return high
        resolution = _RESOLUTION * self._response_time_ms
        coarse = _COARSE_STEP * self._response_time_ms
        halve = False
        while (width := high - low) > resolution:
            if width < 1.01 * coarse and self._lateness_ratio(limit, low) > _CLOSE_LATENESS:
                break
            middle = (low + high) / 2
            if not halve:
                below = -math.log(max(self._lateness_ratio(limit, low), 1e-3))
                above = math.log(self._lateness_ratio(limit, high))
                root = low + width * below / (below + above)
                middle = min(max(root, low + resolution), high) - resolution / 4
            if self._in_time(limit, middle):
                low = middle
            else:
                high = middle
            halve = high - low > width / 2
        return low

    def _least_percentile(self, start: BatchingPolicy | None) -> _Candidate:
        """Find a policy that is in time, or else the one of the least percentile.

        Waiting rarely lowers the percentile. It can where a batch of one takes almost as long as a
        full one: then a request that comes just after a start waits for the whole of it.
        """
        limit = 1
        wait: float | None = None
        best = self._evaluate(1, None)
        if self._meets_sla(best):
            return limit, wait, best
        percentile = 100 * self._probability
        percentile_ms = best.response_percentile_ms(percentile)
        families: list[list[tuple[int, float | None]]] = [
            [(other, None) for other in range(2, self._max_batch_size + 1)],
        ]
        if start is None or start.max_wait_ms is not None:
            families.append(
                [(self._max_batch_size, share * percentile_ms) for share in _SHORT_WAITS]
            )
        for family in families:
            worse = 0
            for other in family:
                evaluation = self._evaluate(*other)
                if evaluation.service_level(percentile_ms) > self._probability + _ROUNDING:
                    percentile_ms = evaluation.response_percentile_ms(percentile)
                    (limit, wait), best = other, evaluation
                    worse = 0
                elif worse:
                    break
                else:
                    worse += 1
                if self._meets_sla(best):
                    return limit, wait, best
        return limit, wait, best
