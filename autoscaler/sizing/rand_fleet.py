"""The load that a fleet of batching replicas takes under its SLA, by RAND.

The load balancer tries a random replica, and after a refusal another one, up to k times. A replica
refuses what it cannot answer in time: of a tries per second the share p(a), by its load-lateness
curve. A fleet of n replicas loses a request in two ways, and the larger share counts:

- **All tries are refused.** RAND (Gujarati et al., Swayam, Theorem 2) takes tries to be
  independent. With λ requests per second, each try taking d, and p_i(a) the share refused of the
  tries that have i·d less time, the rate of tries solves a = (λ/n) Σ_{j≤k} Π_{i<j} p_i(a), and the
  share lost is Π_{i≤k} p_i(a). A replica that refused is still full a try later: k ≤ n - 1.
- **All replicas are full at once.** In a burst the tries depend on each other. No balancer does
  better than one replica that is n times as fast, which loses as much as one that has n times the
  time to answer.

Both ask for the share refused with more or less time than the curve is for. It is taken as that of
an M/M/1/K queue, p = (1-ρ) ρ^K / (1 - ρ^(K+1)) with ρ = a / capacity: the curve's p gives K, which
is in proportion to the time. Simulated fleets of 2 to 16 replicas take between 2% less and 2% more
than this says (tests/autoscaler/simulator/test_fleets_hold.py); without the second way, two
replicas take 8% less.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective
from policy.try_delays import TryDelays

#: Steps of the bisection between the SLA rate and the capacity: an accuracy of 1e-4 of their gap.
_STEPS = 13
#: Share of the rate found that is kept in reserve: simulated fleets take up to 2% less.
_RESERVE = 0.02
_MAX_ROUNDS = 40
_ROUNDING = 1e-10
_CONVERGED = 1e-6
#: The queue's formula has a removable singularity at the capacity.
_BELOW_1 = 1 - 1e-6


@dataclass(frozen=True)
class RandFleet:
    """Identical replicas behind a balancer that tries another one after a refusal.

    A full replica answers `capacity_per_s`, at least the curve's SLA rate.
    """

    curve: LoadLatenessCurve
    capacity_per_s: float
    response_time_ms: float
    delays: TryDelays

    @classmethod
    def of(
        cls,
        curve: LoadLatenessCurve,
        full_batches_per_s: float,
        objective: ServiceLevelObjective,
        delays: TryDelays,
        *,
        limited_by_device: bool,
    ) -> "RandFleet":
        """Return the fleet of a replica that serves so many requests/s in full batches.

        A replica that its event loop limits takes no more in a fleet than alone.
        """
        capacity_per_s = curve.sla_rate_per_s
        if limited_by_device:
            capacity_per_s = max(capacity_per_s, full_batches_per_s)
        return cls(curve, capacity_per_s, objective.response_time_ms, delays)

    def lost_share(self, arrival_rate_per_s: float, replicas: int) -> float:
        """Return the fraction of all requests that are refused at every try, or late."""
        per_replica_s = arrival_rate_per_s / replicas
        if replicas == 1 or not self.curve.overload_levels:
            # One replica is not asked again, and one that serves late refuses nothing.
            return 1 - self.curve.service_level(per_replica_s)
        full_at_once = self._refused(per_replica_s, [float(replicas)])[0]
        return max(full_at_once, self._all_tries_refused(per_replica_s, replicas))

    def keeps(self, arrival_rate_per_s: float, replicas: int, late_share_allowed: float) -> bool:
        """Return whether no more is lost than the share allowed, but for rounding."""
        return self.lost_share(arrival_rate_per_s, replicas) <= late_share_allowed + _ROUNDING

    def _all_tries_refused(self, per_replica_s: float, replicas: int) -> float:
        time_left = self._time_left(replicas)
        attempts_per_s = per_replica_s
        for _ in range(_MAX_ROUNDS):
            tried, tries = 1.0, 0.0
            for refused in self._refused(attempts_per_s, time_left):
                tries += tried
                tried *= refused
            before, attempts_per_s = attempts_per_s, per_replica_s * tries
            if attempts_per_s - before <= _CONVERGED * before:
                break
        return tried

    def _time_left(self, replicas: int) -> list[float]:
        """Return the time that each try has left, as a fraction of the response time."""
        retries = self.delays.retries
        tries = replicas if retries is None else min(retries + 1, replicas)
        used_share = self.delays.try_ms / self.response_time_ms
        left = (1 - number * used_share for number in range(tries))
        return [share for share in left if share > 0]

    def _refused(self, attempts_per_s: float, time_factors: list[float]) -> list[float]:
        """Return the share of tries refused by a replica with some multiples of the time."""
        load = attempts_per_s / self.capacity_per_s
        if abs(load - 1) < 1 - _BELOW_1:
            load = _BELOW_1
        refused = 1 - self.curve.service_level(attempts_per_s)
        # More than the capacity cannot be answered, whatever the curve's rounding says.
        refused = max(refused, 1e-12, (1 - 1 / load) * (1 + 1e-9))
        full = refused / (1 - load + refused * load)  # ρ^K
        if load > 1:  # powers of ρ^K overflow, and those of its inverse do not
            return [(load - 1) / (load - full**-factor) for factor in time_factors]
        shares = (full**factor for factor in time_factors)
        return [(1 - load) * share / (1 - load * share) for share in shares]

    def rate_within_sla_per_s(self, late_share_allowed: float, replicas: int) -> float:
        """Return the highest rate within the SLA of each of some replicas, in requests/s.

        It is at least the rate of one replica by itself, and at most the capacity, above which a
        fleet would never work off a backlog.
        """
        return _rate_within_sla_per_s(self, late_share_allowed, replicas)

    def replicas_needed(self, arrival_rate_per_s: float, late_share_allowed: float) -> int:
        """Return the fewest replicas that lose no more than the share allowed, at least 1."""
        low = max(1, math.ceil(arrival_rate_per_s / ((1 - _RESERVE) * self.capacity_per_s) - 1e-9))
        high = self.curve.replicas_needed(arrival_rate_per_s)
        while low < high:
            middle = (low + high) // 2
            if self.keeps(arrival_rate_per_s / (1 - _RESERVE), middle, late_share_allowed):
                high = middle
            else:
                low = middle + 1
        return min(low, high)


@lru_cache(maxsize=4096)
def _rate_within_sla_per_s(fleet: RandFleet, late_share_allowed: float, replicas: int) -> float:
    alone_per_s, high = fleet.curve.sla_rate_per_s, fleet.capacity_per_s
    if replicas == 1 or not fleet.curve.overload_levels:
        return alone_per_s
    low = alone_per_s
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if fleet.keeps(replicas * middle, replicas, late_share_allowed):
            low = middle
        else:
            high = middle
    return max(alone_per_s, (1 - _RESERVE) * low)
