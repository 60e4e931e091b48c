"""The control limit and max wait of least power that keep a service level under MMPP arrivals.

Under bursts, low control limits with long waits are better than what the rate of the bursts would
suggest: batches of a burst fill while the device is busy, whatever the limit, and in a lull a low
limit lets requests go.
"""

from dataclasses import dataclass

from policy.batching_policy import BatchingPolicy
from policy.mmpp import Mmpp
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.mmpp import MmppEvaluation, evaluate_mmpp

_ROUNDING = 1e-10
# The longest wait is found to within this fraction of the response time.
_RESOLUTION = 1 / 64
# Relative saving below which another control limit is not looked into.
_MIN_SAVING = 2e-3


@dataclass(frozen=True, eq=False)
class MmppSolution:
    """A policy, and what it achieves under MMPP arrivals.

    Attributes
    ----------
    policy : BatchingPolicy
    evaluation : MmppEvaluation
    meets_sla : bool
        Whether the objective's percentile holds.
    """

    policy: BatchingPolicy
    evaluation: MmppEvaluation
    meets_sla: bool


def solve(profile: Profile, process: Mmpp, objective: ServiceLevelObjective) -> MmppSolution:
    """Find the control limit and max wait of least power whose percentile holds.

    Parameters
    ----------
    profile : Profile
        If it has no energy, the policy of least device busy time is sought instead.
    process : Mmpp
        The arrivals.
    objective : ServiceLevelObjective

    Returns
    -------
    MmppSolution
        If no policy was found that keeps the percentile, the device starts whenever it is free, and
        `meets_sla` is False. The control limits tried grow by about a third each, so the power is
        not the very least.

    Raises
    ------
    InfeasibleError
        The device cannot keep up, or bursts make the queue longer than is computed.
    """
    search = _Search(profile, process, objective)
    return search.least_power() or search.at_once()


class _Search:
    def __init__(self, profile: Profile, process: Mmpp, objective: ServiceLevelObjective) -> None:
        self._profile = profile
        self._process = process
        self._objective = objective
        self._max_batch_size = profile.best_batch_size

    def least_power(self) -> MmppSolution | None:
        limits = [1, 2]
        while limits[-1] < self._max_batch_size:
            limits.append(min(limits[-1] + max(1, limits[-1] // 3), self._max_batch_size))
        limits = [limit for limit in limits if limit <= self._max_batch_size]
        per_batch = 1e-3 * self._process.mean_rate_per_s * self._objective.response_time_ms / 2
        place = min(range(len(limits)), key=lambda number: abs(limits[number] - per_batch))
        best = self._longest_wait(limits[place], None)
        for step in (-1, 1):
            number = place + step
            # Uphill in one direction: two limits without an improvement end it.
            failures = 0
            while 0 <= number < len(limits) and (failures < 2 or best is None):
                found = self._longest_wait(limits[number], best)
                best, failures = (best, failures + 1) if found is None else (found, 0)
                number += step
        return best

    def at_once(self) -> MmppSolution:
        """Return the policy that starts whenever the device is free."""
        policy, evaluation = self._evaluate(1, 0.0)
        return MmppSolution(policy, evaluation, self._in_time(evaluation))

    def _evaluate(self, limit: int, wait_ms: float) -> tuple[BatchingPolicy, MmppEvaluation]:
        policy = BatchingPolicy.from_control_limit(
            limit, self._max_batch_size, wait_ms if limit > 1 else None
        )
        return policy, evaluate_mmpp(self._profile, policy, self._process)

    def _cost(self, evaluation: MmppEvaluation) -> float:
        power_w = evaluation.mean_power_w
        return evaluation.device_busy_fraction if power_w is None else power_w

    def _in_time(self, evaluation: MmppEvaluation) -> bool:
        level = evaluation.service_level(self._objective.response_time_ms)
        return level >= self._objective.percentile / 100 - _ROUNDING

    def _longest_wait(self, limit: int, best: MmppSolution | None) -> MmppSolution | None:
        """Return the longest wait in time at a limit, if it costs less than `best`."""
        target = None if best is None else self._cost(best.evaluation) * (1 - _MIN_SAVING)
        time_ms = self._objective.response_time_ms
        longest = max(0.0, time_ms - float(self._profile.latency_ms[0]))
        found: MmppSolution | None = None
        low, high = 0.0, longest
        wait_ms = longest
        while True:
            policy, evaluation = self._evaluate(limit, wait_ms)
            # Longer waits cost less.
            too_costly = target is not None and self._cost(evaluation) >= target
            if too_costly and wait_ms == longest:
                return None
            if too_costly:
                low = wait_ms
            elif self._in_time(evaluation):
                found, low = MmppSolution(policy, evaluation, meets_sla=True), wait_ms
            else:
                high = wait_ms
            if limit == 1 or wait_ms == longest == low or high - low <= _RESOLUTION * time_ms:
                return found
            wait_ms = (low + high) / 2
