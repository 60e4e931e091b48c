"""Solve the load-lateness curve of a replica.

The highest rate that meets the SLA is first that of a policy which starts a batch whenever the
device is free: no control limit carries more (the tests compare). How large the batches are does
matter: where the batch time has steps, a smaller limit, or batches that leave requests behind, can
carry much more. So the sizing with the highest rate is searched, but for gains too small to matter.

Where the policy in force makes batches wait, the curve is that of its policies, each until the age
at which the batcher's limits start a batch anyway. Waits that miss the SLA lower the rate.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.load_lateness import LoadLatenessCurve
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


def solve_load_lateness_curve(
    profile: Profile,
    objective: ServiceLevelObjective,
    max_queue_rows: int,
    *,
    admit_within_ms: float = math.inf,
    search_sizes: bool = True,
    policy_at: Callable[[float], BatchingPolicy] | None = None,
    max_age_ms: float = math.inf,
    round_trip_ms: float = 0.0,
) -> LoadLatenessCurve:
    """Compute the curve of one replica, by bisection on the response-time model.

    Parameters
    ----------
    profile : Profile
        Up to the largest batch that the replica may start.
    objective : ServiceLevelObjective
        The client's SLA.
    max_queue_rows : int
        Requests that may wait besides those in service.
    admit_within_ms : float
        The replica refuses what will not be done within this time; infinity: only what finds no
        room.
    search_sizes : bool
        Whether to search the batch sizes, as a policy table for a service level does. A table for
        weights starts batches up to the size of the highest throughput: then that is the limit.
    policy_at : callable, optional
        The policy in force at an arrival rate per second. None, or where it makes no batch wait:
        the device starts whenever it is free.
    max_age_ms : float
        The age of the oldest request at which a batch starts, whatever the policy says.
    round_trip_ms : float
        The network's share of the response time.

    Raises
    ------
    InfeasibleError
        Too many requests are late even at `MIN_UTILIZATION` of the capacity, or at every rate
        because of the waits.
    """
    profile = profile.serial()
    client_sla, objective = objective, objective.after(round_trip_ms)
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
        in_reach, allow = "", "a longer response time"
        if 0 < reachable_ms < math.inf:
            reachable_ms = _rounded_up(reachable_ms + round_trip_ms)
            in_reach = f", and {objective.percentile:g}% within {reachable_ms:.3g} ms"
        if allowed < refused < math.inf:
            in_reach = f", and its waiting room for {max_queue_rows} refuses {100 * refused:.3g}%"
            allow = "a larger waiting room"
        raise InfeasibleError(
            f"{client_sla.in_words()} is out of reach: a nearly idle replica answers "
            f"{100 * level:.3g}% in time{in_reach}; allow {allow} or a lower "
            "percentile, or use a faster device"
        )
    if policy_at is not None and not best.keeps_with_waits(policy_at, max_age_ms):
        raise InfeasibleError(
            f"{client_sla.in_words()} is out of reach: batches wait too long at every arrival rate"
        )
    rate_per_s = best.sla_rate_per_s
    shares = [best.late_share(multiple * rate_per_s) for multiple in LoadLatenessCurve.MULTIPLES]
    # At a lower rate, waits may miss the SLA that they keep at this one.
    below = sum(multiple < 1 for multiple in LoadLatenessCurve.MULTIPLES)
    shares[:below] = [min(share, allowed) for share in shares[:below]]
    # Only rounding makes a share fall.
    rising = np.maximum.accumulate(np.round(shares, 10))
    levels: list[float] = []
    if math.isfinite(admit_within_ms):
        overloads_per_s = [multiple * rate_per_s for multiple in LoadLatenessCurve.OVERLOADS]
        in_time = [best.level_if_refused_by_time(one, admit_within_ms) for one in overloads_per_s]
        levels = np.minimum.accumulate(np.round(in_time, 10)).tolist()
    return LoadLatenessCurve(rate_per_s, tuple(rising.tolist()), tuple(levels))


def _rounded_up(time_ms: float) -> float:
    """Return a time rounded up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(time_ms)) - 1)
    return math.ceil(time_ms / unit) * unit


class _PolicyCurve:
    """The late share, by arrival rate, of the policy that starts whenever the device is free."""

    def __init__(
        self, profile: Profile, sizing: BatchSizing, response_time_ms: float, max_queue_rows: int
    ) -> None:
        self.sizing = sizing
        self.sla_rate_per_s, self._late_share_allowed = 0.0, 0.0
        self._policy_in_force_at: Callable[[float], BatchingPolicy] | None = None
        self._max_age_ms = math.inf
        size = sizing.max_batch_size
        self.capacity_per_s = float(1e3 * (size / profile.batch_interval_ms()[size - 1]))
        self._profile = profile
        self._response_time_ms = response_time_ms
        self._room = min(max_queue_rows, max(_MAX_ROOM, 2 * profile.best_batch_size))

    def late_share(self, arrival_rate_per_s: float) -> float:
        """Return the fraction of the requests that are refused or late, if none is by time."""
        return min(
            self._late_share(arrival_rate_per_s, policy)
            for policy in self._policies_at(arrival_rate_per_s)
        )

    def level_if_refused_by_time(self, arrival_rate_per_s: float, admit_within_ms: float) -> float:
        """Return the fraction answered in time beyond the SLA's rate, where the rest is refused."""
        refused = self._refused_by_time(arrival_rate_per_s, admit_within_ms)
        # Where the device could do more than the event loop passes on, less is in time, but no less
        # than at the rate within the SLA.
        most_per_s, event_loop = self.capacity_per_s, self._profile.event_loop
        if event_loop is not None:
            busy_ms = event_loop.ms_per_request(self.sizing.max_batch_size)
            at_sla_rate_per_s = (1 - self._late_share_allowed) * self.sla_rate_per_s
            if busy_ms * most_per_s > 1e3 * _MAX_PASSED_ON:
                most_per_s = max(1e3 * _MAX_PASSED_ON / busy_ms, at_sla_rate_per_s)
        return min(1 - refused, most_per_s / arrival_rate_per_s)

    def _refused_by_time(self, arrival_rate_per_s: float, admit_within_ms: float) -> float:
        """Return the share refused by a replica that admits only what it can answer in time.

        It counts full batches. Requests that smaller batches would answer too late are dropped:
        they count as refused.
        """
        policy = self._waiting_policy(arrival_rate_per_s) or self.sizing.policy(1)
        return evaluate(
            replace(self._profile, event_loop=None),
            policy,
            arrival_rate_per_s,
            max_queue_rows=self._room_for(policy),
            admit_within_ms=admit_within_ms,
            answer_within_ms=self._response_time_ms,
        ).full_probability

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
        policies = self._policies_at(arrival_rate_per_s)
        found = [self._evaluate(arrival_rate_per_s, policy) for policy in policies]
        return [one for one in found if one is not None]

    def _policies_at(self, arrival_rate_per_s: float) -> list[BatchingPolicy]:
        """Return the policy in force if it waits, else those of control limits worth a try.

        With small batches, an event loop may not keep up.
        """
        if (in_force := self._waiting_policy(arrival_rate_per_s)) is not None:
            return [in_force]
        limits = {
            least_control_limit(self._profile, arrival_rate_per_s / load)
            for load in _EVENT_LOOP_LOADS
        }
        limits = {min(limit, self.sizing.max_batch_size) for limit in (1, *limits)}
        return [self.sizing.policy(limit) for limit in limits]

    def _waiting_policy(self, arrival_rate_per_s: float) -> BatchingPolicy | None:
        """Return the policy in force at a rate, its waits as the limits bound them; None: none."""
        if self._policy_in_force_at is None:
            return None
        policy = self._policy_in_force_at(arrival_rate_per_s)
        if all(policy.actions[1:]):
            return None
        wait_ms = math.inf if policy.max_wait_ms is None else policy.max_wait_ms
        wait_ms = min(wait_ms, self._max_age_ms)
        return replace(policy, max_wait_ms=wait_ms if math.isfinite(wait_ms) else None)

    def _room_for(self, policy: BatchingPolicy) -> int:
        """Return the waiting room that is evaluated; it holds the queues that the policy awaits."""
        awaited = policy.start_length.values()
        return self._room if all(policy.actions[1:]) else max(self._room, *awaited)

    def _late_share(self, arrival_rate_per_s: float, policy: BatchingPolicy) -> float:
        evaluation = self._evaluate(arrival_rate_per_s, policy)
        if evaluation is None:
            return 1.0
        in_time = evaluation.service_level(self._response_time_ms)
        return min(max(1 - (1 - evaluation.full_probability) * in_time, 0.0), 1.0)

    def _evaluate(self, arrival_rate_per_s: float, policy: BatchingPolicy) -> Evaluation | None:
        """Return the evaluation, or None if the event loop cannot keep up."""
        try:
            return evaluate(
                self._profile, policy, arrival_rate_per_s, max_queue_rows=self._room_for(policy)
            )
        except InfeasibleError:
            return None

    def keeps_with_waits(
        self, policy_at: Callable[[float], BatchingPolicy], max_age_ms: float
    ) -> bool:
        """Lower the rate found to what the policies in force keep; return whether there is any."""
        self._policy_in_force_at, self._max_age_ms = policy_at, max_age_ms
        found = above = self.sla_rate_per_s
        rates = [multiple * found for multiple in reversed(LoadLatenessCurve.MULTIPLES)]
        for rate in (one for one in rates if one <= found):
            if self.late_share(rate) <= self._late_share_allowed:
                self._bisect(rate, above, self._late_share_allowed)
                return True
            above = rate
        return False

    def solve_sla_rate(self, low: float, late_share_allowed: float) -> None:
        """Set the highest rate that meets the SLA, from `low`, which does, up to the capacity."""
        # Above its capacity a fleet never works off its backlog, however few requests it refuses.
        high = self.capacity_per_s
        if self.late_share(high) <= late_share_allowed:
            low = high
        self._bisect(low, high, late_share_allowed)

    def _bisect(self, low: float, high: float, late_share_allowed: float) -> None:
        while high - low > _RESOLUTION * high:
            middle = (low + high) / 2
            if self.late_share(middle) <= late_share_allowed:
                low = middle
            else:
                high = middle
        self.sla_rate_per_s, self._late_share_allowed = low, late_share_allowed
