"""The load-lateness curve of a replica: how many arrivals it takes under an SLA, and what is late.

A request is late unless it is accepted and answered within the SLA's response time: a replica with
a finite waiting room refuses what finds no room. The curve is that of a policy which starts a batch
whenever the device is free. Close to the highest rate that meets the SLA, waiting saves nothing,
and no control limit carries more (the tests compare). At lower rates a policy of least power waits
as long as the SLA allows.

Beyond that rate it matters what the replica does with the excess. If it only refuses what finds no
room, nearly all become late: the late shares say so. If it refuses what it cannot answer in time,
as replicas do unless they are told to serve late, it goes on to answer the others in time, up to
the capacity of its device: the overload levels say so. The late shares remain of use: a replica
whose batches take longer than it believes admits what then comes late.

How large the batches are does matter: where the batch time has steps, a smaller limit, or batches
that leave requests behind, can carry much more. The curve is that of the
sizing with the highest rate, but for gains too small to matter.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import Evaluation, evaluate
from policy.solvers.batch_sizes import BatchSizing, batch_sizings, least_control_limit

#: A replica that meets the SLA only below this share of its capacity is no solution: it would take
#: more than a hundred times the replicas that carry the load.
MIN_UTILIZATION = 0.01
_RESOLUTION = 1e-4
# Another sizing must raise the rate by this share: larger batches save energy, and solving takes
# longer where requests are left behind.
_MIN_GAIN, _MIN_GAIN_IN_STEPS = 0.01, 0.025
# A waiting room beyond this, or beyond two full batches, is taken as this large: it fills only at
# overload, and evaluating it takes seconds. The service level is then too low by less than 0.1% at
# the capacity, and by nothing below 0.95 of it.
_MAX_ROOM = 512
# The shares of the event loop's time that the least control limits tried leave it busy.
_EVENT_LOOP_LOADS = (0.95, 0.85, 0.7)
# An event loop that is busier than this passes requests on too late.
_MAX_PASSED_ON = 0.9
# Smaller late shares are errors of the quadrature.
_MIN_LATE_SHARE = 1e-10


@dataclass(frozen=True)
class LoadLatenessCurve:
    """The share of late requests of one replica, by its arrival rate.

    Attributes
    ----------
    sla_rate_per_s : float
        The highest arrival rate at which the SLA is met: requests per second, Poisson.
    late_shares : tuple of float
        Fraction of the requests that are refused or late at each of `MULTIPLES` of that rate;
        non-decreasing.
    batch_size_limit : int or None
        Largest batch that the replica starts at that rate. No other limit raises the rate by more
        than 1%, or 2.5% with batches that leave requests behind. None: not known.
    overload_levels : tuple of float
        Fraction of the requests that are answered in time at each of `OVERLOADS` times that rate,
        by a replica that refuses what it cannot answer in time; non-increasing. Empty: it refuses
        only what finds no room.
    """

    MULTIPLES: ClassVar[tuple[float, ...]] = (
        *(0.25, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95),
        *(1.0, 1.05, 1.1, 1.2, 1.35, 1.5),
    )
    OVERLOADS: ClassVar[tuple[float, ...]] = (1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0)

    sla_rate_per_s: float
    late_shares: tuple[float, ...]
    batch_size_limit: int | None = None
    overload_levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.sla_rate_per_s < math.inf:
            raise InvalidInputError(f"sla_rate_per_s: must be above 0, not {self.sla_rate_per_s}")
        shares = self.late_shares
        if len(shares) != len(self.MULTIPLES) or not all(0 <= share <= 1 for share in shares):
            raise InvalidInputError(
                f"late_shares: must be {len(self.MULTIPLES)} from 0 to 1, not {shares}"
            )
        if list(shares) != sorted(shares):
            raise InvalidInputError(f"late_shares: must not fall with the rate: {shares}")
        levels = self.overload_levels
        if len(levels) not in (0, len(self.OVERLOADS)) or not all(0 <= one <= 1 for one in levels):
            raise InvalidInputError(
                f"overload_levels: must be {len(self.OVERLOADS)} from 0 to 1, or none, not {levels}"
            )
        if list(levels) != sorted(levels, reverse=True):
            raise InvalidInputError(f"overload_levels: must not rise with the rate: {levels}")
        if self.batch_size_limit is not None and self.batch_size_limit < 1:
            raise InvalidInputError(
                f"batch_size_limit: must be at least 1, not {self.batch_size_limit}"
            )

    @cached_property
    def _log_shares(self) -> tuple[float, ...]:
        return tuple(math.log(max(share, _MIN_LATE_SHARE)) for share in self.late_shares)

    def late_share(self, arrival_rate_per_s: float) -> float:
        """Return the fraction of the requests that are refused or late if none is refused by time.

        Between the multiples, its logarithm is interpolated. Below the first, it is that of the
        first; beyond the last, as many requests per second are in time as at the last.
        """
        multiple = arrival_rate_per_s / self.sla_rate_per_s
        multiples, logs = self.MULTIPLES, self._log_shares
        if multiple >= multiples[-1]:
            return 1 - (1 - self.late_shares[-1]) * multiples[-1] / multiple
        index = bisect_right(multiples, multiple)
        if index == 0:
            return self.late_shares[0]
        low, high = multiples[index - 1], multiples[index]
        part = (multiple - low) / (high - low)
        return math.exp(logs[index - 1] + part * (logs[index] - logs[index - 1]))

    def service_level(self, arrival_rate_per_s: float) -> float:
        """Return the fraction of the requests that are answered in time.

        Between the overloads the requests per second that are in time are interpolated; beyond the
        last, they stay.
        """
        multiple = arrival_rate_per_s / self.sla_rate_per_s
        if multiple <= 1 or not self.overload_levels:
            return 1 - self.late_share(arrival_rate_per_s)
        multiples, in_time = self._in_time
        index = bisect_right(multiples, multiple)
        if index == len(multiples):
            return in_time[-1] / multiple
        low, high = multiples[index - 1], multiples[index]
        part = (multiple - low) / (high - low)
        return (in_time[index - 1] + part * (in_time[index] - in_time[index - 1])) / multiple

    @cached_property
    def _in_time(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Multiples of the SLA's rate, from 1 on, and as such what is in time at each."""
        levels = (1 - self.late_share(self.sla_rate_per_s), *self.overload_levels)
        # Only the late share of the rate itself comes from another model.
        falling = np.minimum.accumulate(levels)
        multiples = (1.0, *self.OVERLOADS)
        return multiples, tuple(m * one for m, one in zip(multiples, falling, strict=True))

    def replicas_needed(self, demand_per_s: float) -> int:
        return max(1, math.ceil(demand_per_s / self.sla_rate_per_s - 1e-9))


def solve_load_lateness_curve(
    profile: Profile,
    objective: ServiceLevelObjective,
    max_queue_rows: int,
    *,
    admit_within_ms: float = math.inf,
    search_sizes: bool = True,
) -> LoadLatenessCurve:
    """Compute the curve of one replica, by bisection on the response-time model.

    Parameters
    ----------
    profile : Profile
        Up to the largest batch that the replica may start.
    objective : ServiceLevelObjective
        Its response time is what the SLA's leaves the replica, once the network's share is taken
        off.
    max_queue_rows : int
        Requests that may wait besides those in service.
    admit_within_ms : float
        The replica refuses what will not be done within this time; infinity: only what finds no
        room.
    search_sizes : bool
        Whether to search the batch sizes, as a policy table for a service level does. A table for
        weights starts batches up to the size of the highest throughput: then that is the limit.

    Raises
    ------
    InfeasibleError
        Too many requests are late even at `MIN_UTILIZATION` of the capacity.
    """
    profile = profile.serial()
    allowed = objective.late_share_allowed
    best: _PolicyCurve | None = None
    level, reachable_ms, refused = 0.0, math.inf, math.inf  # of a nearly idle replica
    sizings: Iterable[BatchSizing] = batch_sizings(profile)
    if not search_sizes:
        sizings = [BatchSizing.all_up_to(profile.best_batch_size)]
    for sizing in sizings:
        curve = _PolicyCurve(profile, sizing, objective.response_time_ms, max_queue_rows)
        low = MIN_UTILIZATION * profile.capacity_per_s
        if best is not None:
            gain = _MIN_GAIN if sizing.takes_all else _MIN_GAIN_IN_STEPS
            low = best.sla_rate_per_s * (1 + gain)
        if low > curve.capacity_per_s:
            continue
        late_share = curve.late_share(low)
        if late_share <= allowed:
            curve.solve_sla_rate(low, allowed)
            best = curve
        elif best is None:
            level = max(level, 1 - late_share)
            reachable_ms = min(reachable_ms, curve.percentile_ms(low, objective.percentile))
            refused = min(refused, curve.refused_share(low))
    if best is None:
        in_reach, allow = _in_reach(reachable_ms, objective), "a longer response time"
        if allowed < refused < math.inf:
            in_reach = f", and its waiting room for {max_queue_rows} refuses {100 * refused:.3g}%"
            allow = "a larger waiting room"
        raise InfeasibleError(
            f"{objective.percentile:g}% within {objective.response_time_ms:g} ms is out of reach: "
            f"a nearly idle replica answers {100 * level:.3g}% in time{in_reach}"
            f"; allow {allow} or a lower percentile, or use a faster device"
        )
    rate_per_s = best.sla_rate_per_s
    shares = [best.late_share(multiple * rate_per_s) for multiple in LoadLatenessCurve.MULTIPLES]
    # Only rounding makes a share fall.
    rising = np.maximum.accumulate(np.round(shares, 10))
    levels: list[float] = []
    if math.isfinite(admit_within_ms):
        overloads_per_s = [multiple * rate_per_s for multiple in LoadLatenessCurve.OVERLOADS]
        in_time = [best.level_if_refused_by_time(one, admit_within_ms) for one in overloads_per_s]
        levels = np.minimum.accumulate(np.round(in_time, 10)).tolist()
    return LoadLatenessCurve(
        rate_per_s, tuple(rising.tolist()), best.sizing.max_batch_size, tuple(levels)
    )


def _in_reach(reachable_ms: float, objective: ServiceLevelObjective) -> str:
    """Return the response time that a nearly idle replica keeps, rounded up, in words."""
    if not math.isfinite(reachable_ms) or reachable_ms <= 0:
        return ""
    unit = 10.0 ** (math.floor(math.log10(reachable_ms)) - 1)
    rounded_ms = math.ceil(reachable_ms / unit) * unit
    return f", and {objective.percentile:g}% within {rounded_ms:.3g} ms"


class _PolicyCurve:
    """The late share, by arrival rate, of the policy that starts whenever the device is free."""

    def __init__(
        self, profile: Profile, sizing: BatchSizing, response_time_ms: float, max_queue_rows: int
    ) -> None:
        self.sizing = sizing
        self.sla_rate_per_s, self._late_share_allowed = 0.0, 0.0
        size = sizing.max_batch_size
        self.capacity_per_s = float(1e3 * (size / profile.batch_interval_ms()[size - 1]))
        self._profile = profile
        self._response_time_ms = response_time_ms
        self._room = min(max_queue_rows, max(_MAX_ROOM, 2 * profile.best_batch_size))

    def late_share(self, arrival_rate_per_s: float) -> float:
        """Return the fraction of the requests that are refused or late, if none is by time."""
        return min(
            self._late_share(arrival_rate_per_s, limit)
            for limit in self._limits_at(arrival_rate_per_s)
        )

    def level_if_refused_by_time(self, arrival_rate_per_s: float, admit_within_ms: float) -> float:
        """Return the fraction answered in time beyond the SLA's rate, where the rest is refused."""
        refused = self._refused_by_time(arrival_rate_per_s, admit_within_ms)
        # Where the device could do more than the event loop passes on, less is in time, but no less
        # than at the rate within the SLA.
        at_sla_rate_per_s = (1 - self._late_share_allowed) * self.sla_rate_per_s
        passed_on_per_s = max(_MAX_PASSED_ON * self._pass_on_capacity_per_s(), at_sla_rate_per_s)
        most_per_s = min(self.capacity_per_s, passed_on_per_s)
        return min(1 - refused, most_per_s / arrival_rate_per_s)

    def _refused_by_time(self, arrival_rate_per_s: float, admit_within_ms: float) -> float:
        """Return the share refused by a replica that admits only what it can answer in time.

        It counts full batches. Requests that smaller batches would answer too late are dropped:
        they count as refused.
        """
        return evaluate(
            replace(self._profile, event_loop=None),
            self.sizing.policy(1),
            arrival_rate_per_s,
            max_queue_rows=self._room,
            admit_within_ms=admit_within_ms,
            answer_within_ms=self._response_time_ms,
        ).full_probability

    def _pass_on_capacity_per_s(self) -> float:
        """Return what the event loop can pass on at most; infinity if it takes no time."""
        event_loop = self._profile.event_loop
        event_loop_ms = (
            0.0 if event_loop is None else event_loop.ms_per_request(self.sizing.max_batch_size)
        )
        return 1e3 / event_loop_ms if event_loop_ms else math.inf

    def percentile_ms(self, arrival_rate_per_s: float, percentile: float) -> float:
        """Return the shortest response time that `percentile` percent keep; infinity if none.

        Of all requests: those refused never do.
        """
        found = (
            evaluation.response_percentile_ms(of_accepted)
            for evaluation in self._evaluations(arrival_rate_per_s)
            if (of_accepted := percentile / (1 - evaluation.full_probability)) < 100
        )
        return min(found, default=math.inf)

    def refused_share(self, arrival_rate_per_s: float) -> float:
        """Return the least share of requests that find no room; infinity if no limit keeps up."""
        found = self._evaluations(arrival_rate_per_s)
        return min((one.full_probability for one in found), default=math.inf)

    def _evaluations(self, arrival_rate_per_s: float) -> list[Evaluation]:
        limits = self._limits_at(arrival_rate_per_s)
        found = [self._evaluate(arrival_rate_per_s, limit) for limit in limits]
        return [one for one in found if one is not None]

    def _limits_at(self, arrival_rate_per_s: float) -> set[int]:
        """Return control limits worth a try: with small batches, an event loop may not keep up."""
        limits = {
            least_control_limit(self._profile, arrival_rate_per_s / load)
            for load in _EVENT_LOOP_LOADS
        }
        return {min(limit, self.sizing.max_batch_size) for limit in (1, *limits)}

    def _late_share(self, arrival_rate_per_s: float, control_limit: int) -> float:
        evaluation = self._evaluate(arrival_rate_per_s, control_limit)
        if evaluation is None:
            return 1.0
        in_time = evaluation.service_level(self._response_time_ms)
        return min(max(1 - (1 - evaluation.full_probability) * in_time, 0.0), 1.0)

    def _evaluate(self, arrival_rate_per_s: float, control_limit: int) -> Evaluation | None:
        """Return the evaluation, or None if the event loop cannot keep up."""
        try:
            return evaluate(
                self._profile,
                self.sizing.policy(control_limit),
                arrival_rate_per_s,
                max_queue_rows=self._room if control_limit == 1 else max(self._room, control_limit),
            )
        except InfeasibleError:
            return None

    def solve_sla_rate(self, low: float, late_share_allowed: float) -> None:
        """Set the highest rate that meets the SLA, from `low`, which does, up to the capacity."""
        # Above its capacity a fleet never works off its backlog, however few requests it refuses.
        high = self.capacity_per_s
        if self.late_share(high) <= late_share_allowed:
            low = high
        while high - low > _RESOLUTION * high:
            middle = (low + high) / 2
            if self.late_share(middle) <= late_share_allowed:
                low = middle
            else:
                high = middle
        self.sla_rate_per_s, self._late_share_allowed = low, late_share_allowed
