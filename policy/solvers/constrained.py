"""The policy of least power whose response-time percentile holds.

The search is over control limits, max waits and batch sizings. With the queue length alone, the
last request of a lull waits until enough others come, so the max wait matters at low loads.
`policy.solvers.wait_search` settles a control limit of a sizing; this module chooses among them.
"""

import math
from collections.abc import Iterator

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.solvers.batch_sizes import (
    BatchSizing,
    batch_sizings,
    economic_sizings,
    least_control_limit,
)
from policy.solvers.solution import Solution, meets_sla
from policy.solvers.wait_search import Candidate, WaitSearch

_MIN_SAVING = 1e-3
"""Relative saving below which another control limit is not looked into."""
_SAME_LEVEL = 1e-9
"""Shares of requests in time that differ by less are the same."""
_WAITS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Waits tried where none is known to be in time, as fractions of the response time."""


def solve(
    profile: Profile,
    arrival_rate_per_s: float,
    objective: ServiceLevelObjective,
    *,
    start: BatchingPolicy | None = None,
) -> Solution:
    """Find the policy of least power whose percentile of the response time holds.

    If no policy keeps it, find the one with the most requests in time, and among equals the one of
    the least percentile. The power is the least if power falls with the wait. That is not proved;
    in the tests the power is within 0.3% of a full search. If the profile has no energy, the policy
    of least device busy time is sought instead. From `start`, the policy of a similar rate, the
    search is several times as fast, and looks at fewer policies.
    """
    shortest_ms = float(profile.latency_ms[0])
    if profile.event_loop is not None:
        shortest_ms += profile.event_loop.ms_per_request(1)
    if profile.event_loop is not None or profile.latency_quantiles is not None:
        profile.arrivals_per_ms(arrival_rate_per_s)  # refuses what no policy can keep up with
    if objective.response_time_ms < shortest_ms:
        raise InfeasibleError(
            f"response time {objective.response_time_ms:g} ms: the shortest batch of "
            f"{profile.model} on {profile.device} takes {shortest_ms:g} ms"
        )
    best = _Search(profile, arrival_rate_per_s, objective).least_power(start)
    return Solution(
        profile=profile,
        arrival_rate_per_s=arrival_rate_per_s,
        objective=objective,
        policy=best.policy,
        _search_evaluation=best.evaluation,
    )


class _Search:
    def __init__(
        self, profile: Profile, arrival_rate_per_s: float, objective: ServiceLevelObjective
    ) -> None:
        self._profile = profile
        self._arrival_rate_per_s = arrival_rate_per_s
        self._objective = objective
        self._batch_interval_ms: list[float] = profile.batch_interval_ms().tolist()
        # The first is that of the highest throughput, which keeps up if any does.
        first, *others = economic_sizings(profile)
        self._waits = [self._wait_search(first)]
        self._waits += [self._wait_search(sizing) for sizing in others if self._keeps_up(sizing)]

    def least_power(self, start: BatchingPolicy | None) -> Candidate:
        """Find the policy of least power that is in time, or else the one with the most in time."""
        near = None if start is None else self._near(start)
        best = near or self._most_in_time(start)
        if self._meets_sla(best):
            for waits in self._waits:
                if waits.sizing.takes_all:
                    best = self._improve(waits, best, spread=near is None)
                else:
                    best = self._improve_in_steps(waits, best)
        return best

    def _wait_search(self, sizing: BatchSizing) -> WaitSearch:
        return WaitSearch(self._profile, self._arrival_rate_per_s, self._objective, sizing)

    def _keeps_up(self, sizing: BatchSizing) -> bool:
        size = sizing.max_batch_size
        return self._arrival_rate_per_s < 1e3 * size / self._batch_interval_ms[size - 1]

    def _meets_sla(self, candidate: Candidate) -> bool:
        return meets_sla(candidate.evaluation, self._objective)

    def _search_of(self, policy: BatchingPolicy) -> WaitSearch | None:
        """Return the search that a policy belongs to, or one with its control limit."""
        for waits in self._waits:
            if waits.sizing.sizes_batches_of(policy):
                return waits
        first = self._waits[0]
        return first if policy.control_limit <= first.sizing.max_batch_size else None

    def _near(self, start: BatchingPolicy) -> Candidate | None:
        """Find the longest wait in time at the control limit of `start`, if it is near its wait."""
        limit, waits = start.control_limit, self._search_of(start)
        return waits.longest_wait(limit, start.max_wait_ms) if waits and limit > 1 else None

    def _improve(self, waits: WaitSearch, best: Candidate, *, spread: bool) -> Candidate:
        """Return the policy of least power among `best` and the control limits of a sizing."""
        largest = waits.sizing.max_batch_size
        limit = min(best.policy.control_limit, largest)
        others, seen = [limit, largest], {1}
        if spread:
            others = self._spread_control_limits(largest)
        elif waits.sizing.sizes_batches_of(best.policy):
            others, seen = [], {1, limit}  # this limit has its longest wait

        def improve(other: int) -> bool:
            nonlocal limit, best
            if other in seen or not 1 < other <= largest:
                return False
            seen.add(other)
            found = waits.longest_wait(other, best.policy.max_wait_ms, self._cost_to_beat(best))
            if found is not None:
                limit, best = other, found
            return found is not None

        if waits.least_cost() >= self._cost_to_beat(best):
            return best
        for other in others:
            improve(other)
        step = max(1, limit // (4 if spread else 8))
        while step:
            while improve(limit + step) or improve(limit - step):
                pass
            step //= 2
        return best

    def _improve_in_steps(self, waits: WaitSearch, best: Candidate) -> Candidate:
        """Return the policy of least power among `best` and a sizing in steps, without max wait.

        A sizing in steps saves power at high loads, where a queue is never short for long.
        """
        limits = waits.sizing.control_limits()
        for limit in sorted(limits, key=lambda limit: waits.cost(limit, None)):
            if waits.cost(limit, None) >= self._cost_to_beat(best):
                break
            if waits.in_time(limit, None):
                return waits.candidate(limit, None)
        return best

    def _cost_to_beat(self, best: Candidate) -> float:
        return best.cost * (1 - _MIN_SAVING)

    def _spread_control_limits(self, largest: int) -> list[int]:
        """Return control limits that grow by about a third each, the likeliest first."""
        limits = [2]
        while limits[-1] < largest:
            limits.append(min(limits[-1] + max(1, limits[-1] // 3), largest))
        likely = 1e-3 * self._arrival_rate_per_s * self._objective.response_time_ms
        return sorted(limits, key=lambda limit: abs(limit - likely))

    def _most_in_time(self, start: BatchingPolicy | None) -> Candidate:
        """Find a policy that is in time, or else the one with the most requests in time.

        Among equals the least percentile decides. Waiting rarely brings more in time. It can where
        a batch of one takes almost as long as a full one: then a request that comes just after a
        start waits for the whole of it.
        """
        lowest = least_control_limit(self._profile, self._arrival_rate_per_s)
        best = self._waits[0].candidate(lowest, None)
        for waits, limit, wait in self._likely_in_time(start):
            if self._meets_sla(best):
                break
            level = self._level(best)
            other = waits.candidate(limit, wait)
            gain = self._level(other) - level
            if gain > _SAME_LEVEL or (
                gain > -_SAME_LEVEL and self._percentile_ms(other) < self._percentile_ms(best)
            ):
                best = other
        return best

    def _likely_in_time(
        self, start: BatchingPolicy | None
    ) -> Iterator[tuple[WaitSearch, int, float | None]]:
        """Yield policies that may bring many requests in time; few if there is a start."""
        stepped = [waits for waits in self._waits if not waits.sizing.takes_all]
        whole = [waits for waits in self._waits if waits.sizing.takes_all]
        if start is not None:
            waits = self._search_of(start)
            if waits is not None:
                yield waits, start.control_limit, start.max_wait_ms
        yield from ((waits, 1, None) for waits in self._waits[1:])
        yield from ((waits, 2, None) for waits in whole if waits.sizing.max_batch_size > 1)
        if start is not None:
            return
        for sizing in batch_sizings(self._profile):
            if self._keeps_up(sizing) and sizing.takes_all:
                yield self._wait_search(sizing), 1, None
        limits = [(waits, limit) for waits in stepped for limit in waits.sizing.control_limits()]
        for waits in whole:
            if waits.sizing.max_batch_size > 1:
                spread = self._spread_control_limits(waits.sizing.max_batch_size)
                limits += [(waits, limit) for limit in spread]
        yield from ((waits, limit, None) for waits, limit in limits)
        for share in _WAITS:
            wait = share * self._objective.response_time_ms
            yield from ((waits, limit, wait) for waits, limit in limits if waits.sizing.takes_all)

    def _level(self, candidate: Candidate) -> float:
        evaluation = candidate.evaluation
        return evaluation.service_level(self._objective.response_time_ms) if evaluation else 0.0

    def _percentile_ms(self, candidate: Candidate) -> float:
        evaluation = candidate.evaluation
        percentile = self._objective.percentile
        return evaluation.response_percentile_ms(percentile) if evaluation else math.inf
