"""A policy table: the batching policy of every arrival rate, solved ahead of the traffic.

A replica looks its policy up at every decision, by the current arrival rate. For another objective
or profile, a new table replaces the old one.
"""

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from policy.batch_sizes import least_control_limit
from policy.batching_policy import BatchingPolicy
from policy.burstiness import burst_rate_per_s
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.solution import Solution, meets_sla
from policy.solvers import exact

__all__ = ["Objective", "PolicyTable", "ServiceLevelObjective", "Weights", "solve_table"]

# Close to the capacity the queue, not the policy, determines the response time.
_MAX_TRAFFIC_INTENSITY = 0.99
_DEFAULT_RATES = 64
# A cell whose policy costs so much more than the best is divided, unless it is as narrow as this.
_MAX_EXCESS, _MIN_RATIO = 0.01, 1.01
# At every so many rates all policies are searched, not only those like the one of the rate before.
_THOROUGH_EVERY = 16
# Where a policy misses the objective within its cell, these shares of its max wait are tried.
_SHORTER_WAITS = (0.95, 0.9, 0.8, 0.65, 0.5, 0.25)


@dataclass(frozen=True)
class PolicyTable:
    """The batching policy of every arrival rate.

    Attributes
    ----------
    rates_per_s : tuple of float
        Increasing arrival rates (requests per second) that divide all rates into cells.
    policies : tuple of BatchingPolicy
        One for each cell, one more than rates: the first is for rates below ``rates_per_s[0]``,
        entry ``i`` for rates from ``rates_per_s[i - 1]`` to below ``rates_per_s[i]``, the last for
        all rates from ``rates_per_s[-1]`` on.
    source_hash : str
        Identifies the profile and the objective that the table was solved for.

    Raises
    ------
    InvalidInputError
        The rates do not increase, or the policies are not one more.
    """

    rates_per_s: tuple[float, ...]
    policies: tuple[BatchingPolicy, ...]
    source_hash: str

    def __post_init__(self) -> None:
        _check_rates(self.rates_per_s)
        if len(self.policies) != len(self.rates_per_s) + 1:
            raise InvalidInputError(
                f"policy table: needs {len(self.rates_per_s) + 1} policies for "
                f"{len(self.rates_per_s)} rates, not {len(self.policies)}"
            )

    def lookup(self, arrival_rate_per_s: float) -> BatchingPolicy:
        """Return the policy for an arrival rate; any rate has one."""
        return self.policies[bisect_right(self.rates_per_s, arrival_rate_per_s)]

    def lookup_bursty(
        self, arrival_rate_per_s: float, index_of_dispersion: float, window_s: float
    ) -> BatchingPolicy:
        """Return the policy for arrivals that come in bursts, from a table for a service level.

        Its max wait is the shortest, and its control limit the lowest, of all rates from the mean
        to the rate of the bursts (`policy.burstiness`). A shorter wait with a higher limit would
        not do: in lulls, the limit of a burst's rate keeps requests waiting. If one of these rates
        has no max wait, its control limit could leave requests alone in the lulls between bursts:
        the device then starts whenever it is free.

        Parameters
        ----------
        arrival_rate_per_s : float
            The mean rate.
        index_of_dispersion : float
            Of the counts of arrivals in windows; 1 or less is as steady as Poisson arrivals.
        window_s : float
            Length of these windows.
        """
        bursts = burst_rate_per_s(arrival_rate_per_s, index_of_dispersion, window_s)
        first = bisect_right(self.rates_per_s, arrival_rate_per_s)
        last = bisect_right(self.rates_per_s, bursts)
        if first == last:
            return self.policies[first]
        policies = self.policies[first : last + 1]
        waits = [policy.max_wait_ms for policy in policies if policy.max_wait_ms is not None]
        if len(waits) < len(policies):
            return self.policies[-1]
        lowest_limit = min(policies, key=lambda policy: policy.control_limit)
        # Long queues are those of the bursts: only a policy of that rate surely carries them.
        at_bursts = policies[-1]
        lengths = range(max(len(lowest_limit.actions), len(at_bursts.actions)))
        actions = [at_bursts.batch_size(q) or lowest_limit.batch_size(q) for q in lengths]
        return BatchingPolicy.from_actions(actions, min(waits))

    def for_bursts(self, index_of_dispersion: float, window_s: float) -> "PolicyTable":
        """Return the table that looks up as `lookup_bursty` does at each cell's upper end."""
        policies = tuple(
            self.lookup_bursty(math.nextafter(rate, 0), index_of_dispersion, window_s)
            for rate in self.rates_per_s
        )
        return replace(self, policies=(*policies, self.policies[-1]))

    def with_policy_between(
        self, low_per_s: float, high_per_s: float, policy: BatchingPolicy
    ) -> "PolicyTable":
        """Return the table with one policy for all rates from `low_per_s` to below `high_per_s`."""
        rates = np.array(self.rates_per_s)
        below, above = rates[rates < low_per_s], rates[rates > high_per_s]
        lows = (low_per_s,) if low_per_s > 0 else ()
        return replace(
            self,
            rates_per_s=(*below.tolist(), *lows, high_per_s, *above.tolist()),
            policies=(
                *self.policies[: below.size + len(lows)],
                policy,
                *self.policies[len(self.policies) - above.size - 1 :],
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the table's file."""
        return {
            "source_hash": self.source_hash,
            "rates_per_s": list(self.rates_per_s),
            "policies": [policy.to_dict() for policy in self.policies],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "PolicyTable":
        """Make a table from the content of a table's file.

        Raises
        ------
        InvalidInputError
            The content is not that of a policy table.
        """
        try:
            return cls(
                rates_per_s=tuple(float(rate) for rate in content["rates_per_s"]),
                policies=tuple(map(BatchingPolicy.from_dict, content["policies"])),
                source_hash=str(content["source_hash"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"policy table: missing or malformed: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the table's file."""
        Path(path).write_text(json.dumps(self.to_dict()) + "\n")

    @classmethod
    def load(cls, path: str | Path, profile: Profile, objective: Objective) -> "PolicyTable":
        """Read a table's file, and check that it was solved for this profile and objective.

        Raises
        ------
        InvalidInputError
            The file cannot be read, is not a policy table, or was solved for something else.
        """
        try:
            content = json.loads(Path(path).read_text())
        except OSError as error:
            raise InvalidInputError(f"policy table {path}: {error.strerror}") from error
        except ValueError as error:
            raise InvalidInputError(f"policy table {path}: not JSON ({error})") from error
        table = cls.from_dict(content)
        if table.source_hash != source_hash(profile, objective):
            raise InvalidInputError(
                f"policy table {path}: was solved for another profile or objective; solve it again"
            )
        return table


def solve_table(
    profile: Profile, objective: Objective, rates: Sequence[float] | None = None
) -> PolicyTable:
    """Solve the policies of a profile for all arrival rates.

    Each cell has the policy of its upper end, which keeps up with every rate of the cell. Under a
    service level objective the policy is also checked at the lower end and in the middle, where a
    control limit is reached later: if it misses the objective there, it gives way to the policy of
    the lower end, to a shorter wait, or at last to no wait. If all of them miss it somewhere, the
    cell has the one with the most requests in time. Below the first rate the next request is too
    far off to be worth waiting for, and from the last rate on the queue is never short: there, the
    device starts whenever it is free. Behind a front of its own it waits for a full batch, as small
    ones would cost the front its time for requests.

    Parameters
    ----------
    profile : Profile
    objective : Weights or ServiceLevelObjective
    rates : sequence of float, optional
        Increasing arrival rates per second, below the profile's capacity. If not given,
        `default_rates`, and for weights others between them wherever a cell's policy would cost
        more than 1% above the best at its lower end.

    Returns
    -------
    PolicyTable

    Raises
    ------
    InvalidInputError, InfeasibleError
        The rates are not increasing, or not below the capacity; the objective weighs energy but the
        profile has none, or its response time is below the shortest batch.

    Notes
    -----
    The response times are those at the replica, whatever the profile's path: batching is given a
    share of the SLA's response time, and the way has the rest. So a busier balancer needs no new
    table.
    """
    profile = replace(profile, path=None)
    grid = default_rates(profile, objective) if rates is None else tuple(map(float, rates))
    _check_rates(grid)
    if isinstance(objective, Weights):
        max_excess = _MAX_EXCESS if rates is None else math.inf
        grid, policies = _least_cost_policies(profile, objective, grid, max_excess)
        greedy = _work_conserving(profile, objective.max_wait_ms)
        policies[0] = greedy
    else:
        policies = _least_power_policies(profile, objective, grid)
        greedy = _work_conserving(profile)
    return PolicyTable(
        rates_per_s=grid,
        policies=(*policies, _when_overloaded(profile, greedy)),
        source_hash=source_hash(profile, objective),
    )


def _when_overloaded(profile: Profile, greedy: BatchingPolicy) -> BatchingPolicy:
    limit = least_control_limit(profile, math.inf)
    return BatchingPolicy.from_control_limit(limit, greedy.max_batch_size, greedy.max_wait_ms)


def _least_cost_policies(
    profile: Profile, weights: Weights, grid: Sequence[float], max_excess: float
) -> tuple[tuple[float, ...], list[BatchingPolicy]]:
    """Return rates, and the best policy at each; cells with a larger excess cost are divided."""
    first = exact.solve(profile, grid[0], weights)
    rates, policies = [grid[0]], [first.policy]
    best_cost = first.average_cost
    ahead = list(reversed(grid[1:]))
    while ahead:
        rate = ahead[-1]
        found = exact.solve(profile, rate, weights, start=policies[-1])
        if found.policy != policies[-1] and max_excess < math.inf and rate > rates[-1] * _MIN_RATIO:
            cost = exact.average_cost(profile, rates[-1], weights, found.policy)
            if cost > (1 + max_excess) * best_cost:
                ahead.append((rates[-1] + rate) / 2)
                continue
        ahead.pop()
        rates.append(rate)
        policies.append(found.policy)
        best_cost = found.average_cost
    return tuple(rates), policies


def _least_power_policies(
    profile: Profile, objective: ServiceLevelObjective, grid: Sequence[float]
) -> list[BatchingPolicy]:
    """Return the policies of the cells that end at each rate of the grid."""
    solutions: list[Solution] = []
    for i, rate in enumerate(grid):
        start = solutions[-1].policy if i % _THOROUGH_EVERY else None
        solutions.append(solve(profile, rate, objective, start=start))
    levels = _ServiceLevels(profile, objective, dict(zip(grid, solutions, strict=True)))
    # Where there is almost no traffic, nothing is worth waiting for.
    greedy = _work_conserving(profile)
    policies = [levels.best((greedy, solutions[0].policy), (grid[0] / 10, grid[0] / 2, grid[0]))]
    for (low, below), (high, above) in pairwise(zip(grid, solutions, strict=True)):
        candidates: Iterable[BatchingPolicy] = (above.policy, below.policy)
        if above.meets_sla:
            candidates = (*_with_shorter_waits(above.policy, below.policy), greedy)
        policies.append(levels.best(candidates, (low, (low + high) / 2, high)))
    return policies


class _ServiceLevels:
    """The fraction of requests in time by policy and rate, up to the one of the objective."""

    def __init__(
        self,
        profile: Profile,
        objective: ServiceLevelObjective,
        solutions: Mapping[float, Solution],
    ) -> None:
        self._profile = profile
        self._objective = objective
        self._solutions = solutions
        self._known: dict[tuple[BatchingPolicy, float], float] = {}

    def best(self, candidates: Iterable[BatchingPolicy], rates: Sequence[float]) -> BatchingPolicy:
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


def _with_shorter_waits(*policies: BatchingPolicy) -> Iterator[BatchingPolicy]:
    """Yield the policies, then the first with ever shorter waits, at last with none."""
    yield from policies
    first = policies[0]
    if first.max_wait_ms is not None:
        for share in _SHORTER_WAITS:
            yield replace(first, max_wait_ms=share * first.max_wait_ms)
    yield BatchingPolicy.from_control_limit(1, first.max_batch_size)


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


def source_hash(profile: Profile, objective: Objective) -> str:
    """Return a hash of what a table is solved for: the profile's numbers, and the objective."""
    source: dict[str, Any] = {
        "latency_ms": profile.latency_ms.tolist(),
        "energy_mj": None if profile.energy_mj is None else profile.energy_mj.tolist(),
        "objective": {"kind": type(objective).__name__, **asdict(objective)},
    }
    if profile.idle_power_w is not None:
        source["idle_power_w"] = profile.idle_power_w
    if profile.front is not None:
        source["front"] = profile.front.to_dict()
    if profile.latency_quantiles is not None:
        source["latency_quantiles"] = profile.latency_quantiles.to_dict()
    return hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()


def _work_conserving(profile: Profile, max_wait_ms: float | None = None) -> BatchingPolicy:
    return BatchingPolicy.from_control_limit(1, profile.best_batch_size, max_wait_ms)


def _check_rates(rates: Sequence[float]) -> None:
    if not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise InvalidInputError("policy table: rates must be finite and above 0, at least one")
    if any(after <= before for before, after in pairwise(rates)):
        raise InvalidInputError("policy table: rates must increase")
