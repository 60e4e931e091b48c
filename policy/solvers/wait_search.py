"""Search the control limit and the max wait of one batch sizing, under a service level objective.

At a given control limit, a longer wait makes batches larger, so the power falls, and it is least
where the device waits for the control limit however long that takes. So one control limit is
settled by the longest wait that keeps the percentile, and most are ruled out by a few looks.

More requests are late the longer the wait, in most cases but not in all: at a low percentile, or
where batches of one take almost as long as full ones, the percentile can hold at long waits and
fail at shorter ones. Then a wait that is too short may be found.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq
from scipy.special import pdtr

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import Evaluation, evaluate, overloaded
from policy.solvers.batch_sizes import BatchSizing

_RESOLUTION, _COARSE_STEP = 1 / 1024, 1 / 256
"""The longest wait is found to within the one, after steps of the other; both are fractions of the
response time."""
_CLOSE_LATENESS = 0.985
"""Within a coarse step, the search for the longest wait ends where the late share is this close to
the allowed one."""
_SURELY = 1.25
"""Where it is only estimated, so many times what is allowed is surely late."""
_ROUNDING = 1e-10
"""A target met exactly is met, whatever the rounding."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A policy, its evaluation, and its cost as `WaitSearch.cost` has it."""

    policy: BatchingPolicy
    evaluation: Evaluation
    cost: float


class WaitSearch:
    """Policies of one sizing by control limit and max wait, under one service level objective."""

    def __init__(
        self,
        profile: Profile,
        arrival_rate_per_s: float,
        objective: ServiceLevelObjective,
        sizing: BatchSizing,
    ) -> None:
        self.sizing = sizing
        self._profile = profile
        self._simple_profile = _without_variation_and_event_loop(profile)
        self._arrival_rate_per_s = arrival_rate_per_s
        self._objective = objective
        self._response_time_ms = objective.response_time_ms
        # Beyond twice the response time, few timers would ever run off.
        self._max_wait_ms = 2 * objective.response_time_ms
        self._evaluations: dict[tuple[int, float | None], Evaluation] = {}
        self._simple_evaluations: dict[tuple[int, float | None], Evaluation] = {}
        self._lateness_ratios: dict[tuple[int, float | None], float] = {}

    def least_cost(self) -> float:
        """Return a bound: no policy of this sizing costs less."""
        sizes = np.unique(self.sizing.sizes[1:])
        profile, idle_power_w = self._profile, self._profile.idle_power_w or 0.0
        per_batch = profile.latency_ms
        if profile.energy_mj is not None:
            per_batch = profile.energy_mj_for_weight(1.0)  # above that of an idle device
        per_request = per_batch[sizes - 1] / sizes
        return float(1e-3 * self._arrival_rate_per_s * per_request.min()) + idle_power_w

    def candidate(self, control_limit: int, max_wait_ms: float | None) -> Candidate:
        return Candidate(
            self.sizing.policy(control_limit, max_wait_ms),
            self._evaluate(control_limit, max_wait_ms),
            self.cost(control_limit, max_wait_ms),
        )

    def _evaluate(self, control_limit: int, max_wait_ms: float | None) -> Evaluation:
        key = (control_limit, max_wait_ms)
        if key not in self._evaluations:
            arguments = self._profile, self.sizing.policy(*key), self._arrival_rate_per_s
            try:
                self._evaluations[key] = evaluate(*arguments, coarse=True)
            except InfeasibleError:
                if self._simple_profile is self._profile:
                    raise
                # The event loop has too small batches, or batch times vary so close to the
                # capacity.
                self._evaluations[key] = overloaded(*arguments)
        return self._evaluations[key]

    def _evaluate_simply(self, control_limit: int, max_wait_ms: float | None) -> Evaluation:
        """Return the evaluation of the device alone, with constant batch times.

        Batches have nearly the same sizes then, and so nearly the same cost, ten times as fast.
        """
        if self._simple_profile is self._profile:
            return self._evaluate(control_limit, max_wait_ms)
        key = (control_limit, max_wait_ms)
        if key not in self._simple_evaluations:
            self._simple_evaluations[key] = evaluate(
                self._simple_profile, self.sizing.policy(*key), self._arrival_rate_per_s
            )
        return self._simple_evaluations[key]

    def in_time(self, control_limit: int, max_wait_ms: float | None) -> bool:
        allowed = self._objective.late_share_allowed
        return self._lateness_ratio(control_limit, max_wait_ms) * allowed <= allowed + _ROUNDING

    def _lateness_ratio(self, control_limit: int, max_wait_ms: float | None) -> float:
        """Return the late share over the allowed one; above 1, a lower bound of it."""
        key = (control_limit, max_wait_ms)
        if key not in self._lateness_ratios:
            self._lateness_ratios[key] = self._compute_lateness_ratio(*key)
        return self._lateness_ratios[key]

    def _compute_lateness_ratio(self, control_limit: int, max_wait_ms: float | None) -> float:
        allowed = self._objective.late_share_allowed
        surely = self.surely_late_share(control_limit, max_wait_ms)
        if self._simple_profile is self._profile:
            if surely > allowed + 1e-9:
                return surely / allowed
        else:
            # Variation and an event loop make more requests late, but for rare cases.
            after_ms = (
                0.0 if self._profile.event_loop is None else self._profile.event_loop.batch_ms
            )
            simple = self._evaluate_simply(control_limit, max_wait_ms)
            simply = surely
            if simply <= _SURELY * allowed:
                simply = 1 - simple.service_level(self._response_time_ms - after_ms)
            if simply > _SURELY * allowed:
                return simply / allowed
        evaluation = self._evaluate(control_limit, max_wait_ms)
        return (1 - evaluation.service_level(self._response_time_ms)) / allowed

    def surely_late_share(self, control_limit: int, max_wait_ms: float | None) -> float:
        """Return a lower bound of the late share, without the distribution of response times.

        Where batch times vary, or with an event loop, it is an estimate.
        """
        evaluation = self._evaluate_simply(control_limit, max_wait_ms)
        probabilities, times = evaluation.batch_size_probabilities, self._profile.latency_ms
        latest = self._response_time_ms * (1 + 1e-9)
        if max_wait_ms is not None:
            # A batch below the control limit was started by a timer: its oldest request has waited
            # at least that long.
            late = max_wait_ms + times[: control_limit - 1] > latest
            oldest = float(probabilities[1:control_limit][late].sum())
        else:
            # A request that finds the device free and nobody waiting is late if too few arrive
            # before its batch must start. Batches below the largest leave nobody behind.
            rate = 1e-3 * self._arrival_rate_per_s
            sizes = np.arange(1, probabilities.size - 1)
            alone = float(probabilities[sizes] @ np.exp(-rate * times[sizes - 1]))
            left_ms = latest - times[control_limit - 1]
            too_few = float(pdtr(control_limit - 2, rate * left_ms)) if left_ms > 0 else 1.0
            oldest = alone * too_few if control_limit > 1 and self.sizing.takes_all else 0.0
        return oldest / evaluation.mean_batch_size

    def longest_wait_near(self, control_limit: int, wait: float | None) -> Candidate | None:
        """Find the longest wait in time at a control limit, if it is near `wait`."""
        if wait is None:
            return (
                self.candidate(control_limit, None) if self.in_time(control_limit, None) else None
            )
        longer = self._max_wait_ms
        for share in (0.0, _COARSE_STEP, 4 * _COARSE_STEP, 16 * _COARSE_STEP):
            shorter = max(0.0, wait - share * self._response_time_ms)
            if self.in_time(control_limit, shorter):
                return self._longest_wait_between(control_limit, shorter, longer)
            longer = shorter
        return None

    def longest_wait_cheaper_than(
        self, cost: float, limit: int, near: float | None
    ) -> Candidate | None:
        """Find the longest wait in time at a control limit, if it costs less than `cost`."""
        if self.cost(limit, None) >= cost:
            return None
        shortest = self._shortest_wait_cheaper_than(
            cost, limit, self._max_wait_ms if near is None else near
        )
        if shortest is None:
            return self.candidate(limit, None) if self.in_time(limit, None) else None
        if not self.in_time(limit, shortest):
            return None
        return self._longest_wait_between(limit, shortest, self._max_wait_ms)

    def cost(self, control_limit: int, max_wait_ms: float | None) -> float:
        """Return what is to be least: the power, or the busy time if the energy is not known."""
        evaluation = self._evaluate_simply(control_limit, max_wait_ms)
        power_w = evaluation.mean_power_w
        return evaluation.device_busy_fraction if power_w is None else power_w

    def _shortest_wait_cheaper_than(self, cost: float, limit: int, near: float) -> float | None:
        """Find the shortest wait that costs less than `cost`; None if no finite one does."""

        def excess(wait: float) -> float:
            return self.cost(limit, wait) - cost

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

    def _longest_wait_between(self, limit: int, low: float, high: float) -> Candidate:
        """Find the longest wait in time from `low`, which is in time, to `high`."""
        step = _COARSE_STEP * self._response_time_ms
        while low + step < high and self.in_time(limit, low + step):
            low, step = low + step, 4 * step
        wait: float | None = self._bisect_longest_wait(limit, low, min(low + step, high))
        if wait == self._max_wait_ms and self.in_time(limit, None):
            wait = None
        return self.candidate(limit, wait)

    def _bisect_longest_wait(self, limit: int, low: float, high: float) -> float:
        """Return the longest wait in time from `low`, which is in time, up to `high`.

        Follow the secant of the logarithm of the lateness where it is smooth, halve where it jumps.
        """
        if self.in_time(limit, high):
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
            if self.in_time(limit, middle):
                low = middle
            else:
                high = middle
            halve = high - low > width / 2
        return low


def _without_variation_and_event_loop(profile: Profile) -> Profile:
    quantiles, event_loop = profile.latency_quantiles, profile.event_loop
    if quantiles is None and event_loop is None:
        return profile
    times_ms, energy_mj = profile.latency_ms, profile.energy_mj
    if quantiles is not None:
        times_ms = np.maximum.accumulate(quantiles.means_ms(times_ms))
    if energy_mj is not None and profile.idle_power_w is not None:
        energy_mj = np.maximum(energy_mj, profile.idle_power_w * times_ms)
    return replace(
        profile, latency_ms=times_ms, energy_mj=energy_mj, latency_quantiles=None, event_loop=None
    )
