"""A policy table: the batching policy of every arrival rate, solved ahead of the traffic.

A replica looks its policy up at every decision, by the current arrival rate. For another objective
or profile, a new table replaces the old one. `policy.tables.solving` solves it.
"""

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import Objective
from policy.profile import Profile


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
    """

    rates_per_s: tuple[float, ...]
    policies: tuple[BatchingPolicy, ...]

    def __post_init__(self) -> None:
        check_rates(self.rates_per_s)
        if len(self.policies) != len(self.rates_per_s) + 1:
            raise InvalidInputError(
                f"policy table: needs {len(self.rates_per_s) + 1} policies for "
                f"{len(self.rates_per_s)} rates, not {len(self.policies)}"
            )

    def lookup(self, arrival_rate_per_s: float) -> BatchingPolicy:
        """Return the policy for an arrival rate; any rate has one."""
        return self.policies[bisect_right(self.rates_per_s, arrival_rate_per_s)]

    def cell_start_per_s(self, arrival_rate_per_s: float) -> float:
        """Return the lowest arrival rate that has the same cell; 0 in the first one."""
        cell = bisect_right(self.rates_per_s, arrival_rate_per_s)
        return self.rates_per_s[cell - 1] if cell else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the table in JSON's types."""
        return {
            "rates_per_s": list(self.rates_per_s),
            "policies": [policy.to_dict() for policy in self.policies],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "PolicyTable":
        """Make the table that `to_dict` wrote."""
        try:
            return cls(
                rates_per_s=tuple(float(rate) for rate in content["rates_per_s"]),
                policies=tuple(map(BatchingPolicy.from_dict, content["policies"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"policy table: missing or malformed: {error}") from error


def source_hash(profile: Profile, objective: Objective) -> str:
    """Return a hash of what a table is solved for: the profile's numbers, and the objective."""
    named = ("model", "device", "cpus", "measured")
    source = {key: value for key, value in profile.to_dict().items() if key not in named}
    source["objective"] = {"kind": type(objective).__name__, **asdict(objective)}
    return hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()


def check_rates(rates: Sequence[float]) -> None:
    if not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise InvalidInputError("policy table: rates must be finite and above 0, at least one")
    if any(after <= before for before, after in pairwise(rates)):
        raise InvalidInputError("policy table: rates must increase")
