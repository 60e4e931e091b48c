"""Solve a policy table: the policy of each cell of arrival rates."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.solvers.batch_sizes import least_control_limit
from policy.solvers.solution import Solution, meets_sla
from policy.tables.table import PolicyTable, check_rates

# Close to the capacity the queue, not the policy, determines the response time.
_MAX_TRAFFIC_INTENSITY = 0.99
_DEFAULT_RATES = 64
# Under weights, a cell in which the control limit changes is cut until its ends are as close as
# this. Its policy then costs less than 1% above the best at its lower end.
_MIN_RATIO = 1.02
# At every so many rates all policies are searched, not only those like the one of the rate before.
_THOROUGH_EVERY = 16
# Where a policy misses the objective within its cell, these shares of its max wait are tried.
_SHORTER_WAITS = (0.95, 0.9, 0.8, 0.65, 0.5, 0.25)


def solve_table(
    profile: Profile, objective: Objective, rates: Sequence[float] | None = None
) -> PolicyTable:
    """Solve the policies of a profile for all arrival rates.

    Each cell has the policy of its upper end, which keeps up with every rate of the cell; under a
    service level objective, see `TableSolver`. Below the first rate the next request is too far off
    to be worth waiting for (if the event loop keeps up with single requests), and from the last
    rate on the queue is never short: there, the device starts whenever it is free. Behind an event
    loop of its own it waits for a full batch, as small ones would cost the event loop its time for
    requests.

    Parameters
    ----------
    rates : sequence of float, optional
        Increasing arrival rates per second, below the profile's capacity. If not given,
        `default_rates`, and for weights others between them wherever the control limit changes.

    Raises
    ------
    InvalidInputError, InfeasibleError
        The rates are not increasing, or not below the capacity; the objective weighs energy but the
        profile has none, or its response time is below the shortest batch.
    """
    if isinstance(objective, ServiceLevelObjective):
        return TableSolver(profile, objective, rates).solve()
    profile = profile.serial()
    min_ratio = _MIN_RATIO if rates is None else math.inf
    grid = _grid(profile, objective, rates)
    grid, policies = _least_cost_policies(profile, objective, grid, min_ratio)
    if least_control_limit(profile, grid[0]) == 1:
        policies[0] = _work_conserving(profile)
    return PolicyTable(grid, (*policies, _when_overloaded(profile)))


class TableSolver:
    """Solves the policies of a profile under an SLA: a whole table, or the cells asked for.

    The policy of a cell's upper end is also checked at the lower end and in the middle, where a
    control limit is reached later: if it misses the objective there, it gives way to the policy of
    the lower end, to a shorter wait, or at last to no wait. If all of them miss it somewhere, the
    cell has the one with the most requests in time.
    """

    def __init__(
        self,
        profile: Profile,
        objective: ServiceLevelObjective,
        rates: Sequence[float] | None = None,
    ) -> None:
        self._profile = profile.serial()
        self._objective = objective
        self._grid = _grid(self._profile, objective, rates)
        self._solutions: dict[float, Solution] = {}
        self._known: dict[tuple[BatchingPolicy, float], float] = {}

    def lookup(self, arrival_rate_per_s: float) -> BatchingPolicy:
        """Return the policy that the table has for an arrival rate."""
        cell = bisect_right(self._grid, arrival_rate_per_s)
        return self._policy(cell) if cell < len(self._grid) else _when_overloaded(self._profile)

    def solve(self) -> PolicyTable:
        return PolicyTable(self._grid, tuple(map(self.lookup, (0.0, *self._grid))))

    def _policy(self, cell: int) -> BatchingPolicy:
        """Return the policy of the cell that ends at a rate of the grid."""
        high, above = self._grid[cell], self._solution(cell)
        greedy = _work_conserving(self._profile)
        if not cell:
            # Where there is almost no traffic, nothing is worth waiting for.
            return self._best((greedy, above.policy), (high / 10, high / 2, high))
        low, below = self._grid[cell - 1], self._solution(cell - 1)
        candidates: Iterable[BatchingPolicy] = (above.policy, below.policy)
        if above.meets_sla:
            candidates = (*_with_shorter_waits(above.policy, below.policy), greedy)
        return self._best(candidates, (low, (low + high) / 2, high))

    def _solution(self, cell: int) -> Solution:
        rate = self._grid[cell]
        if rate not in self._solutions:
            start = self._solution(cell - 1).policy if cell % _THOROUGH_EVERY else None
            self._solutions[rate] = solve(self._profile, rate, self._objective, start=start)
        return self._solutions[rate]

    def _best(self, candidates: Iterable[BatchingPolicy], rates: Sequence[float]) -> BatchingPolicy:
        """Return the first that keeps the objective at all rates, or the one with most in time."""
        candidates = list(dict.fromkeys(candidates))
        if len(candidates) == 1:
            return candidates[0]
        target = self._objective.percentile / 100
        # Beginning at the upper end, most candidates fall out at once.
        for candidate in candidates:
            if all(self._level(candidate, rate) >= target for rate in reversed(rates)):
                return candidate
        return max(
            candidates, key=lambda candidate: sum(self._level(candidate, rate) for rate in rates)
        )

    def _level(self, policy: BatchingPolicy, rate_per_s: float) -> float:
        if (policy, rate_per_s) not in self._known:
            self._known[policy, rate_per_s] = self._compute_level(policy, rate_per_s)
        return self._known[policy, rate_per_s]

    def _compute_level(self, policy: BatchingPolicy, rate_per_s: float) -> float:
        target = self._objective.percentile / 100
        solution = self._solutions.get(rate_per_s)
        try:
            if solution is not None and solution.policy == policy:
                evaluation = solution.search_evaluation
            else:
                evaluation = evaluate(self._profile, policy, rate_per_s, coarse=True)
        except InfeasibleError:
            return 0.0  # it does not keep up
        if meets_sla(evaluation, self._objective):
            return target
        return evaluation.service_level(self._objective.response_time_ms)


def _when_overloaded(profile: Profile) -> BatchingPolicy:
    limit = least_control_limit(profile, math.inf)
    return BatchingPolicy.from_control_limit(limit, profile.best_batch_size)


def _least_cost_policies(
    profile: Profile, weights: Weights, grid: Sequence[float], min_ratio: float
) -> tuple[tuple[float, ...], list[BatchingPolicy]]:
    """Return rates, and the best policy at each; cells in which the control limit changes are cut.

    They end where their upper end is less than `min_ratio` times their lower end.
    """
    rates, policies = [grid[0]], [solve(profile, grid[0], weights).policy]
    ahead = list(reversed(grid[1:]))
    found: dict[float, BatchingPolicy] = {}
    while ahead:
        rate = ahead[-1]
        if rate not in found:
            start = policies[-1] if len(rates) % _THOROUGH_EVERY else None
            found[rate] = solve(profile, rate, weights, start=start).policy
        changes = found[rate].control_limit != policies[-1].control_limit
        if changes and rate > rates[-1] * min_ratio:
            ahead.append((rates[-1] + rate) / 2)
            continue
        rates.append(ahead.pop())
        policies.append(found[rate])
    return tuple(rates), policies


def _with_shorter_waits(*policies: BatchingPolicy) -> Iterator[BatchingPolicy]:
    """Yield the policies, then the first with ever shorter waits, at last with none."""
    yield from policies
    first = policies[0]
    if first.max_wait_ms is not None:
        for share in _SHORTER_WAITS:
            yield replace(first, max_wait_ms=share * first.max_wait_ms)
    yield BatchingPolicy.from_control_limit(1, first.max_batch_size)


def _grid(
    profile: Profile, objective: Objective, rates: Sequence[float] | None
) -> tuple[float, ...]:
    grid = default_rates(profile, objective) if rates is None else tuple(map(float, rates))
    check_rates(grid)
    return grid


def default_rates(profile: Profile, objective: Objective) -> tuple[float, ...]:
    """Return the arrival rates per second that a table is solved for, 64 of them.

    They are even steps up to 0.99 of the capacity. If energy has a weight, geometric steps lead
    from the first of these down to a rate at which one request is not worth waiting for.
    """
    highest = _MAX_TRAFFIC_INTENSITY * profile.capacity_per_s
    even = np.linspace(0, highest, 3 * _DEFAULT_RATES // 4 + 1)[1:]
    lowest = even[0] / 10
    if isinstance(objective, Weights):
        energy_mj = profile.energy_mj_for_weight(objective.energy_weight)
        saving = objective.energy_weight * energy_mj[0]
        if saving > 0:
            # Waiting for the next request costs latency_weight / rate² and saves at most the energy
            # of one start.
            lowest = min(lowest, 1e3 * math.sqrt(objective.latency_weight / saving) / 2)
    low = np.geomspace(lowest, even[0], _DEFAULT_RATES - even.size + 1)[:-1]
    return tuple(np.concatenate([low, even]).tolist())


def _work_conserving(profile: Profile) -> BatchingPolicy:
    return BatchingPolicy.from_control_limit(1, profile.best_batch_size)
