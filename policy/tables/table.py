"""A policy table: the batching policy of every arrival rate, solved ahead of the traffic.

A replica looks its policy up at every decision, by the current arrival rate. For another objective
or profile, a new table replaces the old one. `policy.tables.solving` solves it.
"""

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from policy.batching_policy import BatchingPolicy
from policy.burstiness import burst_rate_per_s
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

    def lookup_bursty(
        self, arrival_rate_per_s: float, index_of_dispersion: float, window_s: float
    ) -> BatchingPolicy:
        """Return the policy for arrivals that come in bursts, from a table for a service level.

        Its max wait is the shortest, and its control limit the lowest, of all rates from the mean
        to the rate of the bursts (`policy.burstiness`). A shorter wait with a higher limit would
        not do: in lulls, the limit of a burst's rate keeps requests waiting. If one of these rates
        has no max wait, its control limit could leave requests alone in the lulls between bursts:
        the device then starts whenever it is free. Where that costs an event loop too much, beyond
        the last rate it waits for full batches: then only the rates with a max wait count, if any.

        Parameters
        ----------
        index_of_dispersion : float
            Of the counts of arrivals in windows; 1 or less is as steady as Poisson arrivals.
        """
        bursts = burst_rate_per_s(arrival_rate_per_s, index_of_dispersion, window_s)
        first = bisect_right(self.rates_per_s, arrival_rate_per_s)
        last = bisect_right(self.rates_per_s, bursts)
        if first == last:
            return self.policies[first]
        policies = self.policies[first : last + 1]
        timed = tuple(policy for policy in policies if policy.max_wait_ms is not None)
        if len(timed) < len(policies):
            if self.policies[-1].control_limit == 1:
                return self.policies[-1]
            if not timed:
                return policies[-1]
            policies = timed
        waits = [policy.max_wait_ms for policy in policies if policy.max_wait_ms is not None]
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
