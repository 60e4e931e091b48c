"""The compiled engine: the arrays of `autoscaler.simulator.engines.kernel`."""

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from autoscaler.simulator.engines import kernel
from autoscaler.simulator.engines.interface import (
    AnsweredRequest,
    FleetCounters,
    ReplicaCounters,
    Routing,
)
from autoscaler.simulator.engines.kernel import Rules, State
from autoscaler.simulator.scenario import Scenario
from policy.batcher.arrival_rate import horizon_s
from policy.event_loop import EventLoopCosts
from policy.service_model import ServiceModel

FloatArray = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)

_INITIAL_SLOTS = 8
_INITIAL_RETRY_RING = 64
#: The arrays of a state with a row for each slot.
_BY_SLOT = (
    *("times", "counts", "sent_s", "reached_s", "attempts", "unread_times", "unread_attempts"),
    *("ready", "batch_random"),
)
#: As in a live replica.
_RATE_WINDOW_S = 5.0


class CompiledEngine:
    """Moves requests between clients, balancer and replicas. Time never goes backwards.

    A replica is identified by its slot, a small number that the caller assigns and reuses.
    """

    def __init__(
        self,
        scenario: Scenario,
        counters: FleetCounters,
        seed: int,
        batch_seed: int = 0,
        log_requests: bool = False,
    ) -> None:
        services = scenario.services()
        self._rules_within = {one: rules_of(scenario, services[one]) for one in services}
        self._rules = self._rules_within[1.0]
        self._log_requests = log_requests
        self._batch_seeds = np.array([batch_seed], np.uint64)
        rules = self._rules_within.values()
        ring = _power_of_two(max(max(1, one.max_queue_rows) + one.latency_s.size for one in rules))
        concurrency = max(one.concurrency for one in rules)
        unread = _power_of_two(concurrency) if self._rules.has_loop else 1
        self._state = State(
            times=np.full((_INITIAL_SLOTS, kernel.N_TIMES), np.inf),
            counts=np.zeros((_INITIAL_SLOTS, kernel.N_COUNTS), np.int64),
            sent_s=np.empty((_INITIAL_SLOTS, ring)),
            reached_s=np.empty((_INITIAL_SLOTS, ring)),
            attempts=np.empty((_INITIAL_SLOTS, ring), np.int64),
            unread_times=np.empty((_INITIAL_SLOTS, unread, 3)),
            unread_attempts=np.empty((_INITIAL_SLOTS, unread), np.int64),
            ready=np.zeros(_INITIAL_SLOTS, np.int64),
            arrivals_s=np.empty(0),
            retry_times=np.empty((_INITIAL_RETRY_RING, 2)),
            retry_counts=np.empty((_INITIAL_RETRY_RING, 2), np.int64),
            fleet_counts=np.zeros(kernel.N_FLEET_COUNTS, np.int64),
            fleet_times=np.zeros(kernel.N_FLEET_TIMES),
            random=np.array([seed], np.uint64),
            batch_random=np.zeros(_INITIAL_SLOTS, np.uint64),
            in_time=counters.in_time,
            refused=counters.refused,
            energy_j=counters.energy_j,
            histogram=counters.histogram,
            log=np.empty((0, 4)),
        )

    def add(self, slot: int, now_s: float) -> None:
        """Start a new, empty replica in a slot."""
        state = self._state
        slots = state.times.shape[0]
        if slot >= slots:
            more = max(slots, slot + 1 - slots)
            grown = {name: _extended(getattr(state, name), more) for name in _BY_SLOT}
            grown["times"][slots:] = np.inf
            self._state = state = state._replace(**grown)
        times = state.times[slot]
        times[:] = math.inf
        times[kernel.LOOP_FREE_S] = -math.inf
        times[kernel.RATE_WEIGHT] = 0.0
        times[[kernel.REFUSED_SHARE, kernel.REFUSED_ANYWAY_SHARE]] = 0.0
        times[kernel.RATE_FIRST_S] = math.nan
        times[kernel.COUNTED_S] = now_s
        state.counts[slot] = 0
        state.batch_random[slot] = kernel.random_bits(self._batch_seeds, 0)

    def use(self, sla_multiple: float, now_s: float) -> None:
        """Change the multiple of the SLA that all replicas batch for."""
        self._rules = self._rules_within[sla_multiple]
        counts = self._state.counts
        for slot in np.flatnonzero(counts[:, kernel.ON_DEVICE] == 0).tolist():
            kernel.decide(self._rules, self._state, slot, float(now_s))

    def arrival_rate_per_s(self, slots: Sequence[int], now_s: float) -> float:
        """Return the mean of what replicas estimate as `policy.batcher.arrival_rate` does."""
        columns = [kernel.RATE_WEIGHT, kernel.RATE_FIRST_S, kernel.RATE_LAST_S]
        weights, first_s, last_s = self._state.times[np.ix_(slots, columns)].T
        window_s = self._rules.rate_window_s
        seen_s = np.maximum(now_s - first_s, 0.1 * window_s)
        weights = weights * np.exp(-np.abs(now_s - last_s) / window_s)
        rates_per_s = weights / (window_s * -np.expm1(-seen_s / window_s))
        return float(np.nansum(rates_per_s)) / len(slots)  # NaN before the first arrival

    def route_to(self, slots: Sequence[int], now_s: float) -> None:
        """Set the replicas that take requests from now on; without any, requests are held."""
        state = self._state
        if not state.fleet_counts[kernel.READY]:
            state.fleet_times[kernel.OPEN_SINCE_S] = now_s
        state.ready[: len(slots)] = slots
        state.fleet_counts[kernel.READY] = len(slots)

    def offer(self, sent_s: FloatArray) -> None:
        """Append the times, ascending, at which clients send their next requests."""
        state = self._state
        left = state.arrivals_s[state.fleet_counts[kernel.NEXT_ARRIVAL] :]
        arrivals_s = np.concatenate([left, sent_s]) if left.size else sent_s
        state.fleet_counts[kernel.NEXT_ARRIVAL] = 0
        log = _extended(state.log, sent_s.size) if self._log_requests else state.log
        self._state = state._replace(arrivals_s=arrivals_s, log=log)

    def advance(self, until_s: float) -> None:
        """Simulate every attempt before `until_s`, and the devices up to and including it."""
        while not kernel.advance(self._rules, self._state, float(until_s)):
            self._reserve_retries(1)

    def drain(self, slot: int, now_s: float) -> None:
        """Make a replica start its queue without waiting for more requests; see `drained_at_s`."""
        state = self._state
        state.counts[slot, kernel.DRAINING] = 1
        if kernel.is_draining(state, slot) and not state.counts[slot, kernel.ON_DEVICE]:
            kernel.decide(self._rules, state, slot, float(now_s))

    def drained_at_s(self, slot: int) -> float:
        """Return when a draining replica became empty; infinity while it is not."""
        return float(self._state.times[slot, kernel.DRAINED_S])

    def kill(self, slot: int, now_s: float) -> None:
        """End a replica at once; the balancer retries its requests at others."""
        state = self._state
        self._reserve_retries(state.sent_s.shape[1] + int(state.counts[slot, kernel.UNREAD]))
        kernel.kill(self._rules, self._state, slot, float(now_s))

    def finish(self, now_s: float) -> None:
        """Answer or refuse every request still in flight, once the last has been sent."""
        self._refuse_held()
        while self._in_flight:
            now_s += max(1e-3, self._rules.try_s)
            self.advance(now_s)
            self._refuse_held()
        state = self._state
        for slot in np.flatnonzero(state.counts[:, kernel.WAITING]):
            self.drain(int(slot), now_s)
        self.advance(math.inf)

    def counters(self, slot: int) -> ReplicaCounters:
        row = self._state.counts[slot].tolist()
        return ReplicaCounters(
            offered=row[kernel.OFFERED],
            refused=row[kernel.REFUSED],
            completed=row[kernel.COMPLETED],
            late=row[kernel.LATE],
            expired=row[kernel.EXPIRED],
            waiting=row[kernel.WAITING],
        )

    def take_ongoing_s(self) -> float:
        """Return the request-seconds spent in replicas or held since the last call, and reset."""
        ongoing_s = float(self._state.fleet_times[kernel.ONGOING_S])
        self._state.fleet_times[kernel.ONGOING_S] = 0.0
        return ongoing_s

    def work(self) -> tuple[int, float, float]:
        """Return the batches of all replicas, and for how long devices and event loops were busy.

        The times are in s.
        """
        devices_s, loops_s = self._state.fleet_times[[kernel.DEVICES_BUSY_S, kernel.LOOPS_BUSY_S]]
        return int(self._state.fleet_counts[kernel.BATCHES]), float(devices_s), float(loops_s)

    def request_log(self) -> list[AnsweredRequest]:
        """Return the answered requests by the time they were sent; empty without a log."""
        if not self._log_requests:
            return []
        rows = self._state.log[: self._state.fleet_counts[kernel.LOGGED]].tolist()
        return sorted(
            AnsweredRequest(sent_s, response_ms, int(size), int(attempts))
            for sent_s, response_ms, size, attempts in rows
        )

    @property
    def _in_flight(self) -> bool:
        """Return whether a request is in transit or unread."""
        state = self._state
        return bool(
            state.fleet_counts[kernel.NEXT_ARRIVAL] < state.arrivals_s.size
            or state.fleet_counts[kernel.RETRIES_PENDING]
            or np.any(state.counts[:, kernel.UNREAD])
        )

    def _refuse_held(self) -> None:
        """Refuse the held requests if no replica is ready."""
        state = self._state
        if state.fleet_counts[kernel.READY]:
            return
        head, pending = state.fleet_counts[[kernel.RETRY_HEAD, kernel.RETRIES_PENDING]].tolist()
        order = (head + np.arange(pending)) % state.retry_times.shape[0]
        held_s = np.concatenate(
            [
                state.arrivals_s[state.fleet_counts[kernel.NEXT_ARRIVAL] :],
                state.retry_times[order, kernel.RETRY_SENT_S],
            ]
        )
        np.add.at(state.refused, held_s.astype(np.int64), 1)
        state.fleet_counts[kernel.NEXT_ARRIVAL] = state.arrivals_s.size
        state.fleet_counts[kernel.RETRIES_PENDING] = 0

    def _reserve_retries(self, more: int) -> None:
        """Grow the ring of retries until it has room for `more`."""
        state = self._state
        head, pending = state.fleet_counts[[kernel.RETRY_HEAD, kernel.RETRIES_PENDING]].tolist()
        ring = state.retry_times.shape[0]
        if pending + more <= ring:
            return
        order = (head + np.arange(pending)) % ring
        size = _power_of_two(pending + more)
        times, counts = np.empty((size, 2)), np.empty((size, 2), np.int64)
        times[:pending], counts[:pending] = state.retry_times[order], state.retry_counts[order]
        state.fleet_counts[kernel.RETRY_HEAD] = 0
        self._state = state._replace(retry_times=times, retry_counts=counts)


def rules_of(scenario: Scenario, service: ServiceModel) -> Rules:
    """Return the constants of a run, in the kernel's types.

    A whole number given as an int would trigger another compilation, which takes 20 s. The energy
    of a batch is counted without what the device would draw idle in its time; `Simulation` adds
    that for all the time that a replica exists.
    """
    table = scenario.table if scenario.power_limit_w is None else service.table
    policies, profile = table.policies, service.profile
    limits, delays = service.limits, service.delays
    assert delays.retries is not None
    ratios, weights = np.empty((0, 0)), np.empty(0)
    if profile.latency_quantiles is not None:
        ratios, weights = profile.latency_quantiles.points
    event_loop = profile.event_loop or EventLoopCosts(0.0, 0.0, shares_cpu=False)
    lengths = max(len(policy.actions) for policy in policies)
    latency_ms = np.asarray(limits.latency_ms, dtype=np.float64)
    energy_mj = profile.energy_mj
    waits_ms = [
        limits.max_age_ms
        if policy.max_wait_ms is None
        else min(limits.max_age_ms, policy.max_wait_ms)
        for policy in policies
    ]
    return Rules(
        rates_per_s=np.array(table.rates_per_s, dtype=np.float64),
        actions=np.array(
            [[policy.batch_size(length) for length in range(lengths)] for policy in policies]
        ),
        max_batch_size=np.array([policy.max_batch_size for policy in policies]),
        max_wait_s=1e-3 * np.array(waits_ms, dtype=np.float64),
        latency_s=1e-3 * latency_ms,
        latency_ms=latency_ms,
        time_ranks=np.cumsum(weights),
        time_ratios=np.ascontiguousarray(ratios),
        admit_within_ms=float(limits.admit_within_ms),
        answer_within_ms=float(limits.answer_within_ms),
        try_ms=float(limits.try_ms),
        late_share_allowed=float(limits.late_share_allowed),
        energy_j=np.zeros(latency_ms.size) if energy_mj is None else 1e-3 * energy_mj,
        idle_power_w=float(profile.idle_power_w or 0.0),
        has_loop=profile.event_loop is not None,
        loop_request_s=1e-3 * event_loop.request_ms,
        loop_batch_s=1e-3 * event_loop.batch_ms,
        rate_window_s=_RATE_WINDOW_S,
        rate_horizon_s=float(horizon_s(1e-3 * limits.max_age_ms, _RATE_WINDOW_S)),
        request_delay_s=1e-3 * delays.request_delay_ms,
        reply_delay_s=1e-3 * delays.reply_delay_ms,
        try_s=1e-3 * delays.try_ms,
        response_time_ms=float(service.client_sla.response_time_ms),
        replica_response_time_ms=float(service.sla.response_time_ms),
        max_queue_rows=limits.max_queue_rows,
        concurrency=limits.concurrency or limits.max_queue_rows + limits.max_batch_size,
        retries=delays.retries,
        routing=list(Routing).index(scenario.routing),
    )


def _extended(array: NDArray[T], rows: int) -> NDArray[T]:
    return np.concatenate([array, np.zeros((rows, *array.shape[1:]), array.dtype)])


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()
