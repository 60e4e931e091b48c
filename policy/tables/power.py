"""The least power of a replica by arrival rate and response time, for a ceiling on the power.

A ceiling of W watts on n replicas that share λ requests/s leaves each W/n for λ/n. Under it, the
policy of least response time is, of those of least power within some multiples of the SLA's
response time, the one of the least multiple whose power fits. So one table answers for every W and
n, and a replica need not solve again when they change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.optimization import solve
from policy.profile import Profile
from policy.response_time.evaluation import Evaluation
from policy.tables.table import PolicyTable

#: Response times, as multiples of the SLA's, and arrival rates, as shares of the capacity.
MULTIPLES = (0.25, 0.4, 0.6, 0.8, 1.0, 1.25, 1.6, 2.5, 5.0, 10.0)
LOADS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.88, 0.95)
#: Seconds whose mean arrival rate decides which policies keep the ceiling.
POWER_TICKS = 30
#: Stands for the power within a time that no policy keeps.
NEVER_W = 1e30
#: Numbers of replicas that are compared at most.
_MAX_TRIED = 64


@dataclass(frozen=True)
class PowerTable:
    """The least power in W within each of `MULTIPLES` at each of `LOADS`, and its policies.

    Attributes
    ----------
    idle_power_w, full_power_w : float
        Of a replica without load, and of one that runs full batches without a pause.
    power_w : tuple of float
        By load and then by multiple; `NEVER_W` where no policy is in time.
    policies : tuple of BatchingPolicy
        Likewise, and at last that of overload; empty where only numbers of replicas are asked for.
    """

    #: The length of `to_floats`.
    SIZE: ClassVar[int] = 3 + len(LOADS) * len(MULTIPLES)

    capacity_per_s: float
    idle_power_w: float
    full_power_w: float
    power_w: tuple[float, ...]
    policies: tuple[BatchingPolicy, ...] = field(default=(), repr=False)

    @cached_property
    def _least_w(self) -> NDArray[np.float64]:
        """Power by multiple and load, from no load to the capacity."""
        table = np.array(self.power_w).reshape(len(LOADS), len(MULTIPLES))
        idle, full = (np.full(len(MULTIPLES), w) for w in (self.idle_power_w, NEVER_W))
        return np.vstack([idle, table, full]).T

    @cached_property
    def _any_w(self) -> NDArray[np.float64]:
        """The same where what is out of reach has the power of the least time in reach."""
        filled = self._least_w.copy()
        filled[:, -1] = self.full_power_w
        for row in range(len(MULTIPLES) - 2, -1, -1):
            out = filled[row] >= NEVER_W
            filled[row, out] = filled[row + 1, out]
        return np.asarray(np.minimum(filled, self.full_power_w))

    def _multiples(
        self, table_w: NDArray[np.float64], rates_per_s: ArrayLike, power_w: ArrayLike
    ) -> NDArray[np.float64]:
        """Return the least multiple within each power at each rate; infinite: none."""
        at = np.asarray(rates_per_s) / self.capacity_per_s
        fits = [np.interp(at, (0.0, *LOADS, 1.0), row) <= np.asarray(power_w) for row in table_w]
        first = np.argmax([*fits, np.ones(at.shape)], axis=0)
        return np.asarray(np.append(MULTIPLES, np.inf)[first])

    def multiple_within(self, rate_per_s: float, power_w: float) -> float:
        """Return the least multiple of the SLA whose power is within one; the last if none is.

        Whether the replica keeps it at that rate is another question. At overload it runs full
        batches for all of them: what is not answered within the SLA itself is refused.
        """
        if rate_per_s >= self.capacity_per_s:
            power_w = max(power_w, self.full_power_w)
        within = self._multiples(self._any_w, [rate_per_s], [power_w])[0]
        return float(min(within, MULTIPLES[-1]))

    def policies_for(self, multiple: float) -> PolicyTable:
        """Return the policies of least power within a multiple.

        A cell of rates has the policy of its upper end, where it takes the most power.
        """
        rates = tuple(load * self.capacity_per_s for load in LOADS)
        column = MULTIPLES.index(multiple)
        return PolicyTable(rates, (*self.policies[column : -1 : len(MULTIPLES)], self.policies[-1]))

    def replicas_within(self, limit_w: float, rate_per_s: float, needed: int) -> tuple[int, float]:
        """Return how many replicas answer soonest under a ceiling, and the multiple of the SLA.

        At most the `needed` ones that keep the SLA without a ceiling: if their power fits, that
        multiple is 1. Fewer hold the multiple that `multiple_within` lets each of them batch for.
        If none of these numbers carries the load, they are as many as run full batches under the
        ceiling, and refuse the rest; the multiple is then infinite.
        """
        if self._multiples(self._any_w, [rate_per_s / needed], [limit_w / needed])[0] <= 1:
            return needed, 1.0
        tried = np.unique(np.linspace(1, needed, min(needed, _MAX_TRIED)).astype(int))
        kept, own = (
            np.maximum(1.0, self._multiples(table_w, rate_per_s / tried, limit_w / tried))
            for table_w in (self._least_w, self._any_w)
        )
        held = np.where(kept > own, np.inf, kept)
        best = int(np.argmin(held))
        if np.isinf(held[best]):
            return min(needed, max(1, int(limit_w / self.full_power_w))), float("inf")
        return int(tried[best]), float(held[best])

    def to_floats(self) -> tuple[float, ...]:
        return (self.capacity_per_s, self.idle_power_w, self.full_power_w, *self.power_w)

    @classmethod
    def from_floats(cls, values: Sequence[float]) -> "PowerTable":
        capacity_per_s, idle_power_w, full_power_w, *power_w = values
        return cls(capacity_per_s, idle_power_w, full_power_w, tuple(power_w))

    def to_dict(self) -> dict[str, Any]:
        """Return the table in JSON's types."""
        return {"floats": self.to_floats(), "policies": [one.to_dict() for one in self.policies]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "PowerTable":
        """Make the table that `to_dict` wrote."""
        policies = tuple(map(BatchingPolicy.from_dict, content["policies"]))
        return replace(cls.from_floats(content["floats"]), policies=policies)


def in_words_under(limit_w: float, sla: ServiceLevelObjective, multiple: float) -> str:
    """Return what a ceiling on the power leaves of an SLA, in words."""
    if np.isinf(multiple):
        return f"{limit_w:g} W do not carry this load: the rest is refused"
    return f"{limit_w:g} W hold {sla.times(multiple).in_words()}"


def check_power_limit(profile: Profile, limit_w: float) -> None:
    """Raise `InvalidInputError` if a ceiling on the power cannot be held, or not be computed."""
    if profile.energy_mj is None:
        raise InvalidInputError(
            "power limit: the profile has no energy; measure it where there is a meter"
        )
    idle_power_w = profile.idle_power_w or 0.0
    if limit_w <= idle_power_w:
        raise InvalidInputError(
            f"power limit: must be above the {idle_power_w:g} W of one idle replica, "
            f"not {limit_w:g}"
        )


def solve_power_table(profile: Profile, batching_sla: ServiceLevelObjective) -> PowerTable:
    """Solve the table of a profile for multiples of what batching may use of the SLA's time."""
    serial = profile.serial()
    capacity_per_s, best = serial.capacity_per_s, serial.best_batch_size
    powers: list[float] = []
    policies: list[BatchingPolicy] = []
    for load in LOADS:
        rows = _least_powers(serial, load, batching_sla)
        for number in range(1, len(rows)):  # a longer time cannot take more power
            rows[number] = min(rows[number - 1 : number + 1], key=lambda row: row[0])
        reached = next((policy for power_w, policy in rows if power_w < NEVER_W), rows[-1][1])
        powers += [power_w for power_w, _ in rows]
        policies += [policy if power_w < NEVER_W else reached for power_w, policy in rows]
    assert serial.energy_mj is not None
    return PowerTable(
        capacity_per_s,
        serial.idle_power_w or 0.0,
        float(serial.energy_mj[best - 1] / serial.latency_ms[best - 1]),
        tuple(powers),
        (*policies, BatchingPolicy.from_control_limit(1, best)),
    )


def _least_powers(
    profile: Profile, load: float, sla: ServiceLevelObjective
) -> list[tuple[float, BatchingPolicy]]:
    """Return the least power within each multiple of a time, and its policy; `NEVER_W`: none."""
    rate_per_s, best = load * profile.capacity_per_s, profile.best_batch_size
    full = BatchingPolicy.from_control_limit(best, best)
    rows = [(NEVER_W, full)] * len(MULTIPLES)
    start = None
    for number, multiple in reversed(list(enumerate(MULTIPLES))):
        within = replace(sla, response_time_ms=multiple * sla.response_time_ms)
        try:
            solution = solve(profile, rate_per_s, within, start=start)
        except InfeasibleError:  # no batch is as short
            break
        if not solution.meets_sla:
            break
        start = solution.policy
        rows[number] = _row(solution.search_evaluation, start)
    return rows


def _row(evaluation: Evaluation, policy: BatchingPolicy) -> tuple[float, BatchingPolicy]:
    assert evaluation.mean_power_w is not None
    return evaluation.mean_power_w, policy
