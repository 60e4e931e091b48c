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

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import Evaluation, evaluate
from policy.solvers.batch_sizes import BatchSizing

_RESOLUTION = 1 / 256
"""The longest wait is found to within this fraction of the response time."""
_SURELY = 1.25
"""Where it is only estimated, so many times what is allowed is surely late."""
_ROUNDING = 1e-10
"""A target met exactly is met, whatever the rounding."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A policy, its evaluation, and its cost as `WaitSearch.cost` has it.

    The evaluation is None if event loop and device do not keep up.
    """

    policy: BatchingPolicy
    evaluation: Evaluation | None
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
        self._simple_profile = profile.with_mean_times()
        if profile.event_loop is not None:
            self._simple_profile = replace(self._simple_profile, event_loop=None)
        self._arrival_rate_per_s = arrival_rate_per_s
        self._objective = objective
        self._response_time_ms = objective.response_time_ms
        # Beyond twice the response time, few timers would ever run off.
        self._max_wait_ms = 2 * objective.response_time_ms
        self._evaluations: dict[tuple[int, float | None], Evaluation | None] = {}
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

    def _evaluate(self, control_limit: int, max_wait_ms: float | None) -> Evaluation | None:
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
                self._evaluations[key] = None
        return self._evaluations[key]

    def _evaluate_simply(self, control_limit: int, max_wait_ms: float | None) -> Evaluation:
        """Return the evaluation of the device alone, with constant batch times.

        Batches have nearly the same sizes then, and so nearly the same cost, ten times as fast.
        """
        key = (control_limit, max_wait_ms)
        if self._simple_profile is self._profile and (found := self._evaluate(*key)):
            return found
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
        if self._simple_profile is not self._profile:
            # Variation and an event loop make more requests late, but for rare cases.
            event_loop = self._profile.event_loop
            left_ms = self._response_time_ms - (0.0 if event_loop is None else event_loop.batch_ms)
            simple = self._evaluate_simply(control_limit, max_wait_ms)
            simply = 1 - simple.service_level(left_ms)
            if simply > _SURELY * allowed:
                return simply / allowed
        evaluation = self._evaluate(control_limit, max_wait_ms)
        level = 0.0 if evaluation is None else evaluation.service_level(self._response_time_ms)
        return (1 - level) / allowed

    def longest_wait(
        self, control_limit: int, near: float | None, cheaper_than: float = math.inf
    ) -> Candidate | None:
        """Find the longest wait in time at a control limit; it may be `near` a known one.

        None: no shorter wait is in time, or the longest one costs too much.
        """

        def excess(wait: float) -> float:
            log_ratio = math.log(max(self._lateness_ratio(control_limit, wait), 1e-3))
            return min(log_ratio, 0.0) if self.in_time(control_limit, wait) else log_ratio

        if self.cost(control_limit, None) >= cheaper_than:
            return None
        if self.in_time(control_limit, None):
            return self.candidate(control_limit, None)
        resolution, step = _RESOLUTION * self._response_time_ms, self._response_time_ms / 64
        low = high = self._max_wait_ms if near is None else near
        while not self.in_time(control_limit, low):
            if low == 0 or self.cost(control_limit, low) >= cheaper_than:
                return None
            low, high, step = max(0.0, low - step), low, 4 * step
        while self.in_time(control_limit, high):
            if high == self._max_wait_ms:
                wait = high
                break
            low, high, step = high, min(high + step, self._max_wait_ms), 4 * step
        else:
            wait = float(brentq(excess, low, high, xtol=resolution / 2))
            while not self.in_time(control_limit, wait):
                wait, resolution = max(low, wait - resolution), 2 * resolution
        found = self.candidate(control_limit, wait)
        return found if found.cost < cheaper_than else None

    def cost(self, control_limit: int, max_wait_ms: float | None) -> float:
        """Return what is to be least: the power, or the busy time if the energy is not known."""
        evaluation = self._evaluate_simply(control_limit, max_wait_ms)
        power_w = evaluation.mean_power_w
        return evaluation.device_busy_fraction if power_w is None else power_w
