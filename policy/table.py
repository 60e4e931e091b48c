"""A policy table: the batching policy of every arrival rate, solved ahead of the traffic.

A replica looks its policy up at every decision, by the arrival rate it sees at the time; a new
table (another objective, another profile) replaces the old one whole.
"""

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from policy import exact
from policy.batching_policy import BatchingPolicy
from policy.constrained import solve_constrained
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.smdp import energy_for
from sojourn.errors import InvalidInputError

__all__ = ["Objective", "PolicyTable", "ServiceLevelObjective", "Weights", "solve_table"]

# Close to the capacity the queue, not the policy, makes the response time.
_HIGHEST_TRAFFIC_INTENSITY = 0.99
_DEFAULT_RATES = 64


@dataclass(frozen=True)
class PolicyTable:
    """Arrival rate to batching policy.

    Attributes
    ----------
    rates_per_s : tuple of float
        Increasing arrival rates that cut the line from 0 to infinity into cells.
    policies : tuple of BatchingPolicy
        One for each cell, one more than rates: the first is for rates below ``rates_per_s[0]``,
        entry ``i`` for rates from ``rates_per_s[i - 1]`` to below ``rates_per_s[i]``, the last for
        all rates from ``rates_per_s[-1]`` on.
    source_hash : str
        Identifies the profile and the objective that the table was solved for.
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
        """Give the policy for an arrival rate, in constant time, whatever the rate."""
        return self.policies[bisect_right(self.rates_per_s, arrival_rate_per_s)]

    def to_dict(self) -> dict[str, Any]:
        """Give the content of the table's file."""
        return {
            "source_hash": self.source_hash,
            "rates_per_s": list(self.rates_per_s),
            "policies": [
                {"actions": list(policy.actions), "max_wait_ms": policy.max_wait_ms}
                for policy in self.policies
            ],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "PolicyTable":
        """Make a table of the content of a table's file.

        Raises
        ------
        InvalidInputError
            The content is not a policy table's.
        """
        try:
            return cls(
                rates_per_s=tuple(float(rate) for rate in content["rates_per_s"]),
                policies=tuple(
                    BatchingPolicy(tuple(map(int, entry["actions"])), entry["max_wait_ms"])
                    for entry in content["policies"]
                ),
                source_hash=str(content["source_hash"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"policy table: missing or malformed: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the table's file."""
        Path(path).write_text(json.dumps(self.to_dict()) + "\n")

    @classmethod
    def load(cls, path: str | Path, profile: Profile, objective: Objective) -> "PolicyTable":
        """Read a table's file, and see that it was solved for this profile and objective.

        Raises
        ------
        InvalidInputError
            The file cannot be read, is no policy table, or is one for something else.
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

    Each cell has the policy of its upper end. So the policy keeps up with every rate of the cell;
    at the lower rates it waits for a batch a little larger than is best there.

    Parameters
    ----------
    profile : Profile
    objective : Weights or ServiceLevelObjective
    rates : sequence of float, optional
        Increasing arrival rates per second, below the profile's capacity; `default_rates` if not
        given. Below the first and beyond the last, the device starts whenever it is free.

    Returns
    -------
    PolicyTable

    Raises
    ------
    InvalidInputError, InfeasibleError
        The rates are not increasing, or not below the capacity; the objective asks for energy and
        the profile has none.
    """
    grid = default_rates(profile, objective) if rates is None else tuple(map(float, rates))
    _check_rates(grid)
    if isinstance(objective, ServiceLevelObjective):
        policies = [
            solve_constrained(
                profile,
                rate,
                response_time_ms=objective.response_time_ms,
                percentile=objective.percentile,
            ).policy
            for rate in grid
        ]
        greedy = _work_conserving(profile)
        return PolicyTable(grid, (*policies, greedy), source_hash(profile, objective))
    policies = [exact.solve(profile, rate, objective).policy for rate in grid]
    # With next to no traffic the next request is too far off to be worth any wait; beyond the
    # grid the queue is never short.
    greedy = _work_conserving(profile, objective.max_wait_ms)
    return PolicyTable(
        rates_per_s=grid,
        policies=(greedy, *policies[1:], greedy),
        source_hash=source_hash(profile, objective),
    )


def default_rates(profile: Profile, objective: Objective) -> tuple[float, ...]:
    """Arrival rates per second that a table is solved for: even steps up to 0.99 of the capacity.

    Where energy has a weight, geometric steps lead from the first of these down to a rate at
    which one request is not worth waiting for.
    """
    highest = _HIGHEST_TRAFFIC_INTENSITY * profile.capacity_per_s
    even = np.linspace(0, highest, 3 * _DEFAULT_RATES // 4 + 1)[1:]
    lowest = even[0] / 10
    if isinstance(objective, Weights):
        saving = objective.energy_weight * energy_for(profile, objective)[0]
        if saving > 0:
            # A lone request waits 1/rate for the next, which is paid 1/rate times a millisecond.
            lowest = min(lowest, 1e3 * math.sqrt(objective.latency_weight / saving) / 2)
    low = np.geomspace(lowest, even[0], _DEFAULT_RATES - even.size + 1)[:-1]
    return tuple(np.concatenate([low, even]).tolist())


def source_hash(profile: Profile, objective: Objective) -> str:
    """Identify what a table is solved for: the numbers of the profile, and the objective."""
    source = {
        "latency_ms": profile.latency_ms.tolist(),
        "energy_mj": None if profile.energy_mj is None else profile.energy_mj.tolist(),
        "objective": {"kind": type(objective).__name__, **asdict(objective)},
    }
    return hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()


def _work_conserving(profile: Profile, max_wait_ms: float | None = None) -> BatchingPolicy:
    return BatchingPolicy.from_control_limit(1, profile.best_batch_size, max_wait_ms)


def _check_rates(rates: Sequence[float]) -> None:
    if not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise InvalidInputError("policy table: rates must be finite and above 0, at least one")
    if any(after <= before for before, after in pairwise(rates)):
        raise InvalidInputError("policy table: rates must increase")
