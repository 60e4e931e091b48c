"""The compiled engine: `simulator.engines.kernel`, and the arrays that it works on."""

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.engines import kernel
from simulator.engines.counters import FleetCounters
from simulator.engines.interface import Answered, ReplicaCounters, ReplicaModel, Routing
from simulator.engines.kernel import Rules, State

FloatArray = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)

_PLACES = 8
_RETRIES = 64


class CompiledEngine:
    """An engine for long traces: millions of requests in a second of a core.

    Parameters
    ----------
    model : ReplicaModel
    tally : FleetCounters
        Where answers and refusals are counted.
    seed : int
        Of the balancer's choices.
    keeps_log : bool
        Whether each answered request is remembered.
    rate_window_s : float
        As of `BatcherCore`.
    """

    def __init__(
        self,
        model: ReplicaModel,
        tally: FleetCounters,
        seed: int,
        keeps_log: bool = False,
        rate_window_s: float = 5.0,
    ) -> None:
        self._rules = _rules(model, rate_window_s)
        self._keeps_log = keeps_log
        ring = _power_of_two(max(1, model.limits.waiting_room) + self._rules.latency_s.size)
        self._state = State(
            times=np.full((_PLACES, kernel.TIMES), np.inf),
            numbers=np.zeros((_PLACES, kernel.NUMBERS), np.int64),
            sent_s=np.empty((_PLACES, ring)),
            reached_s=np.empty((_PLACES, ring)),
            tries=np.empty((_PLACES, ring), np.int64),
            ready=np.zeros(_PLACES, np.int64),
            arrivals_s=np.empty(0),
            retries=np.empty((_RETRIES, 2)),
            retry_numbers=np.empty((_RETRIES, 2), np.int64),
            cursor=np.zeros(kernel.CURSORS, np.int64),
            random=np.array([seed], np.uint64),
            balancer=np.zeros(kernel.BALANCER),
            in_time=tally.in_time,
            refused=tally.refused,
            energy_j=tally.energy_j,
            histogram=tally.histogram,
            log=np.empty((0, 4)),
        )

    def add(self, place: int, now_s: float) -> None:
        """Put a new, empty replica in a place."""
        state = self._state
        places = state.times.shape[0]
        if place >= places:
            more = max(places, place + 1 - places)
            self._state = state = state._replace(
                times=np.concatenate([state.times, np.full((more, kernel.TIMES), np.inf)]),
                numbers=_longer(state.numbers, more),
                sent_s=_longer(state.sent_s, more),
                reached_s=_longer(state.reached_s, more),
                tries=_longer(state.tries, more),
                ready=_longer(state.ready, more),
            )
        times = state.times[place]
        times[:] = math.inf
        times[kernel.RATE_WEIGHT] = 0.0
        times[kernel.RATE_FIRST_S] = math.nan
        times[kernel.COUNTED_S] = now_s
        state.numbers[place] = 0

    def route_to(self, places: Sequence[int], now_s: float) -> None:
        """Say which replicas take requests from now on."""
        state = self._state
        if not state.cursor[kernel.READY]:
            state.balancer[kernel.OPEN_SINCE_S] = now_s
        state.ready[: len(places)] = places
        state.cursor[kernel.READY] = len(places)

    def offer(self, sent_s: FloatArray) -> None:
        """Give the times at which clients send their next requests, rising."""
        state = self._state
        left = state.arrivals_s[state.cursor[kernel.NEXT_ARRIVAL] :]
        arrivals_s = np.concatenate([left, sent_s]) if left.size else sent_s
        state.cursor[kernel.NEXT_ARRIVAL] = 0
        log = _longer(state.log, sent_s.size) if self._keeps_log else state.log
        self._state = state._replace(arrivals_s=arrivals_s, log=log)

    def advance(self, until_s: float) -> None:
        """Simulate all tries before `until_s`, and what devices have done by then."""
        while not kernel.advance(self._rules, self._state, float(until_s)):
            self._lengthen_retries(1)

    def drain(self, place: int, now_s: float) -> None:
        """Have a replica start what waits without waiting for others."""
        self._state.numbers[place, kernel.DRAINING] = 1
        if not self._state.numbers[place, kernel.ON_DEVICE]:
            kernel.decide(self._rules, self._state, place, float(now_s))

    def gone_s(self, place: int) -> float:
        """When a draining replica had finished what it had; infinite while it has not."""
        return float(self._state.times[place, kernel.GONE_S])

    def kill(self, place: int, now_s: float) -> None:
        """End a replica at once: the balancer sends what it had to others."""
        self._lengthen_retries(self._state.sent_s.shape[1])
        kernel.lose(self._rules, self._state, place, float(now_s))

    def finish(self, now_s: float) -> None:
        """After the last request was sent, answer or refuse all that are still under way."""
        self._refuse_held()
        while (
            self._state.cursor[kernel.NEXT_ARRIVAL] < self._state.arrivals_s.size
            or (self._state.cursor[kernel.RETRIES_PENDING])
        ):
            now_s += max(1e-3, self._rules.try_s)
            self.advance(now_s)
        state = self._state
        for place in np.flatnonzero(state.numbers[:, kernel.WAITING]):
            self.drain(int(place), now_s)
        self.advance(math.inf)

    def counters(self, place: int) -> ReplicaCounters:
        """Tell what a replica has counted."""
        row = self._state.numbers[place].tolist()
        return ReplicaCounters(
            offered=row[kernel.OFFERED],
            refused=row[kernel.REFUSED],
            completed=row[kernel.COMPLETED],
            late=row[kernel.LATE],
            waiting=row[kernel.WAITING],
        )

    def take_ongoing_s(self) -> float:
        """Give the request-seconds in replicas, or waiting for a first one, since last asked."""
        ongoing_s = float(self._state.balancer[kernel.ONGOING_S])
        self._state.balancer[kernel.ONGOING_S] = 0.0
        return ongoing_s

    @property
    def refused(self) -> int:
        """Requests that every try refused, so far."""
        return int(self._state.cursor[kernel.ALL_REFUSED])

    def log(self) -> list[Answered]:
        """Give the requests answered, by the time they were sent; empty if no log is kept."""
        if not self._keeps_log:
            return []
        rows = self._state.log[: self._state.cursor[kernel.LOGGED]].tolist()
        return sorted(Answered(sent, ms, int(size), int(tries)) for sent, ms, size, tries in rows)

    def _refuse_held(self) -> None:
        """Refuse what waits for a first replica, if there is none."""
        state = self._state
        if state.cursor[kernel.READY]:
            return
        head, pending = state.cursor[[kernel.RETRY_HEAD, kernel.RETRIES_PENDING]].tolist()
        order = (head + np.arange(pending)) % state.retries.shape[0]
        held_s = np.concatenate(
            [
                state.arrivals_s[state.cursor[kernel.NEXT_ARRIVAL] :],
                state.retries[order, kernel.RETRY_SENT_S],
            ]
        )
        np.add.at(state.refused, held_s.astype(np.int64), 1)
        state.cursor[kernel.ALL_REFUSED] += held_s.size
        state.cursor[kernel.NEXT_ARRIVAL] = state.arrivals_s.size
        state.cursor[kernel.RETRIES_PENDING] = 0

    def _lengthen_retries(self, more: int) -> None:
        """Make the ring of retries long enough for `more` than are in it."""
        state = self._state
        head, pending = state.cursor[[kernel.RETRY_HEAD, kernel.RETRIES_PENDING]].tolist()
        ring = state.retries.shape[0]
        if pending + more <= ring:
            return
        order = (head + np.arange(pending)) % ring
        size = _power_of_two(pending + more)
        retries, numbers = np.empty((size, 2)), np.empty((size, 2), np.int64)
        retries[:pending], numbers[:pending] = state.retries[order], state.retry_numbers[order]
        state.cursor[kernel.RETRY_HEAD] = 0
        self._state = state._replace(retries=retries, retry_numbers=numbers)


def _rules(model: ReplicaModel, rate_window_s: float) -> Rules:
    policies = model.table.policies
    limits, delays = model.limits, model.delays
    lengths = max(len(policy.actions) for policy in policies)
    latency_ms = np.asarray(limits.latency_ms, dtype=np.float64)
    energy_mj = model.energy_mj
    waits_ms = [
        limits.max_age_ms
        if policy.max_wait_ms is None
        else min(limits.max_age_ms, policy.max_wait_ms)
        for policy in policies
    ]
    return Rules(
        rates_per_s=np.array(model.table.rates_per_s, dtype=np.float64),
        actions=np.array(
            [[policy.batch_size(length) for length in range(lengths)] for policy in policies]
        ),
        largest=np.array([policy.max_batch_size for policy in policies]),
        longest_wait_s=1e-3 * np.array(waits_ms, dtype=np.float64),
        latency_s=1e-3 * latency_ms,
        energy_j=np.zeros(latency_ms.size) if energy_mj is None else 1e-3 * energy_mj,
        rate_window_s=rate_window_s,
        request_delay_s=1e-3 * delays.request_delay_ms,
        reply_delay_s=1e-3 * delays.reply_delay_ms,
        try_s=1e-3 * delays.try_ms,
        response_time_ms=model.objective.response_time_ms,
        replica_response_time_ms=model.objective_at_replica.response_time_ms,
        waiting_room=model.limits.waiting_room,
        retries=model.retries,
        routing=list(Routing).index(model.routing),
    )


def _longer(array: NDArray[T], rows: int) -> NDArray[T]:
    return np.concatenate([array, np.zeros((rows, *array.shape[1:]), array.dtype)])


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()
