"""An engine for the simulator around the batcher core, event by event, in plain Python.

It is slow and easy to follow. Tests hold the compiled engine equal to it;
`autoscaler.simulator.engines.kernel` has the same steps under the same names.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count

import numpy as np
from numpy.typing import NDArray

from autoscaler.simulator.engines.compiled import CompiledEngine
from autoscaler.simulator.engines.interface import (
    AnsweredRequest,
    BatchTimes,
    FleetCounters,
    FleetWork,
    ReplicaCounters,
    ReplicaModel,
    Routing,
)
from autoscaler.simulator.engines.kernel import bin_of, draw, draw_ratio, random_bits
from policy.batcher.core import BatcherCore
from policy.batcher.requests import Batch, Refusal, Request

FloatArray = NDArray[np.float64]


class EventKind(IntEnum):
    """The order of simultaneous events."""

    DEVICE = 0
    READ = 1
    RETRY = 2
    ARRIVAL = 3


@dataclass
class Message:
    """A client's request: in transit, held at the balancer, or in a replica."""

    sent_s: float
    attempts: int = 0
    #: Slot of the replica that refused it last.
    avoid: int | None = None
    #: Time of its arrival at its replica.
    reached_s: float = math.nan
    #: Time at which the event loop has read it.
    read_s: float = math.nan
    #: Size of its batch.
    batch_size: int = 0


@dataclass(eq=False)
class LiveReplica:
    """A replica of the live engine: its batcher core, its event loop and its counters."""

    slot: int
    core: BatcherCore
    counted_s: float
    #: Random numbers of its batch times.
    batch_random: NDArray[np.uint64]
    batch: Batch | None = None
    drained_at_s: float = math.inf
    draining: bool = False
    #: Counts its decisions. A device event scheduled by an earlier decision is stale.
    decision: int = 0
    #: Its requests, waiting and on the device, in order of arrival.
    messages: deque[Message] = field(default_factory=deque)
    #: Requests that its event loop has not read.
    unread: deque[Message] = field(default_factory=deque)
    #: When the event loop has finished its work.
    loop_free_s: float = -math.inf
    offered: int = 0
    refused: int = 0
    completed: int = 0
    late: int = 0
    expired: int = 0

    @property
    def load(self) -> int:
        return len(self.messages) + len(self.unread)

    def counters(self) -> ReplicaCounters:
        counts = (self.offered, self.refused, self.completed, self.late, self.expired)
        return ReplicaCounters(*counts, self.core.queue_length)


class Balancer:
    """Picks replicas by `Routing`, the same ones as the compiled kernel's `route`."""

    def __init__(self, routing: Routing, seed: int) -> None:
        self._routing = routing
        self._random = np.array([seed], np.uint64)

    def pick(self, ready: Sequence[LiveReplica], avoid: int | None) -> LiveReplica:
        if self._routing is Routing.RANDOM:
            return self._pick_random(ready, avoid)
        if self._routing is Routing.POWER_OF_TWO:
            pair = (self._pick_random(ready, avoid), self._pick_random(ready, avoid))
            return min(pair, key=lambda replica: replica.load)
        offset = draw(self._random, len(ready))
        others = [
            replica
            for replica in (*ready[offset:], *ready[:offset])
            if replica.slot != avoid or len(ready) == 1
        ]
        return min(others, key=lambda replica: replica.load)

    def _pick_random(self, ready: Sequence[LiveReplica], avoid: int | None) -> LiveReplica:
        """Pick a ready replica at random, other than `avoid` if there is another."""
        index = draw(self._random, len(ready))
        if ready[index].slot == avoid and len(ready) > 1:
            index = (index + 1 + draw(self._random, len(ready) - 1)) % len(ready)
        return ready[index]


class LiveRecords:
    """The counters of a fleet, and an optional log of its requests."""

    def __init__(self, model: ReplicaModel, counters: FleetCounters, *, log_requests: bool) -> None:
        self.loops_busy_s = 0.0
        self._energy_mj, self._idle_power_w = model.service.profile.energy_mj, model.idle_power_w
        self._at_client, self._at_replica = model.service.client_sla, model.service.sla
        self._reply_delay_s = 1e-3 * model.service.delays.reply_delay_ms
        self._counters = counters
        self._log: list[AnsweredRequest] | None = [] if log_requests else None
        self._batches = 0
        self._devices_busy_s = 0.0

    def answer(self, now_s: float, replica: LiveReplica, message: Message) -> None:
        response_ms = 1e3 * (now_s + self._reply_delay_s - message.sent_s)
        self._counters.histogram[bin_of(response_ms)] += 1
        if not self._at_client.is_late(response_ms):
            self._counters.in_time[int(message.sent_s)] += 1
        if self._at_replica.is_late(1e3 * (now_s - message.reached_s)):
            replica.late += 1
        replica.completed += 1
        if self._log is not None:
            size, attempts = message.batch_size, message.attempts
            self._log.append(AnsweredRequest(message.sent_s, response_ms, size, attempts))

    def give_up(self, message: Message) -> None:
        self._counters.refused[int(message.sent_s)] += 1

    def batch_started(self, now_s: float, size: int, batch_s: float) -> None:
        """Count a batch, and its energy beyond that of an idle device."""
        self._batches += 1
        self._devices_busy_s += batch_s
        if self._energy_mj is not None:
            energy_j = self._counters.energy_j
            second = min(int(now_s), energy_j.size - 1)
            energy_j[second] += 1e-3 * self._energy_mj[size - 1]
            energy_j[second] -= self._idle_power_w * batch_s

    def work(self) -> FleetWork:
        return FleetWork(self._batches, self._devices_busy_s, self.loops_busy_s)

    def request_log(self) -> list[AnsweredRequest]:
        return sorted(self._log or [])


_DeviceEvent = tuple[LiveReplica, int]
#: Time, kind, order of scheduling, and subject of an event.
_Event = tuple[float, EventKind, int, Message | _DeviceEvent | LiveReplica]


class LiveEngine(CompiledEngine):
    """An engine around `policy.batcher.core.BatcherCore`, with the compiled one's interface."""

    def __init__(
        self,
        model: ReplicaModel,
        counters: FleetCounters,
        seed: int,
        batch_seed: int = 0,
        log_requests: bool = False,
    ) -> None:
        self._model = model
        self._batch_times = BatchTimes.of(model.service.profile.latency_quantiles)
        self._records = LiveRecords(model, counters, log_requests=log_requests)
        self._balancer = Balancer(model.routing, seed)
        self._batch_seeds = np.array([batch_seed], np.uint64)
        self._replicas: dict[int, LiveReplica] = {}
        self._ready: list[LiveReplica] = []
        self._events: list[_Event] = []
        self._order = count()
        #: Requests held without a ready replica, and since when.
        self._held: list[tuple[float, Message]] = []
        self._open_since_s = 0.0
        #: Requests in transit or unread.
        self._in_transit = 0
        self._ongoing_s = 0.0
        self._now_s = 0.0

    def add(self, slot: int, now_s: float) -> None:
        core = BatcherCore(self._model.table, self._model.service.limits)
        batch_random = np.array([random_bits(self._batch_seeds, 0)], np.uint64)
        self._replicas[slot] = LiveReplica(slot, core, now_s, batch_random)

    def route_to(self, slots: Sequence[int], now_s: float) -> None:
        if not self._ready:
            self._open_since_s = now_s
        self._ready = [self._replicas[slot] for slot in slots]

    def offer(self, sent_s: FloatArray) -> None:
        delay_s = 1e-3 * self._model.service.delays.request_delay_ms
        for sent in sent_s.tolist():
            self._schedule(sent + delay_s, EventKind.ARRIVAL, Message(sent))

    def advance(self, until_s: float) -> None:
        if self._ready:
            held, self._held = self._held, []
            for _, message in held:
                self._attempt(self._open_since_s, message)
                self._process_events(self._open_since_s)
        self._process_events(until_s)
        if math.isfinite(until_s):
            for held_s, _ in self._held:
                self._ongoing_s += until_s - max(held_s, self._now_s)
            self._now_s = until_s
            for replica in self._replicas.values():
                self._count_ongoing(until_s, replica)

    def _process_events(self, until_s: float) -> None:
        """Process attempts before `until_s`, and replicas' events up to and including it."""
        events = self._events
        while events and events[0][:2] <= (until_s, EventKind.READ):
            now_s, _, _, subject = heapq.heappop(events)
            if math.isinf(now_s):
                break
            if isinstance(subject, Message):
                self._in_transit -= 1
                if self._ready:
                    self._attempt(now_s, subject)
                else:
                    self._held.append((now_s, subject))
            elif isinstance(subject, LiveReplica):
                if subject.unread and subject.unread[0].read_s == now_s:
                    self._read(now_s, subject)
            else:
                replica, decision = subject
                if decision == replica.decision:
                    self._complete(now_s, replica)
                    self._decide(now_s, replica)

    def drain(self, slot: int, now_s: float) -> None:
        replica = self._replicas[slot]
        replica.draining = True
        self._drain_core(now_s, replica)

    def drained_at_s(self, slot: int) -> float:
        return self._replicas[slot].drained_at_s

    def kill(self, slot: int, now_s: float) -> None:
        replica = self._replicas.pop(slot)
        replica.decision += 1
        self._in_transit -= len(replica.unread)
        for message in (*replica.messages, *replica.unread):
            self._retry(now_s, message, None)
        replica.unread.clear()

    def finish(self, now_s: float) -> None:
        while self._in_transit or (self._held and self._ready):
            now_s += max(1e-3, 1e-3 * self._model.service.delays.try_ms)
            self.advance(now_s)
        for _, message in self._held:
            self._records.give_up(message)
        for slot, replica in self._replicas.items():
            if replica.core.queue_length:
                self.drain(slot, now_s)
        self.advance(math.inf)

    def counters(self, slot: int) -> ReplicaCounters:
        return self._replicas[slot].counters()

    def take_ongoing_s(self) -> float:
        ongoing_s, self._ongoing_s = self._ongoing_s, 0.0
        return ongoing_s

    def work(self) -> FleetWork:
        return self._records.work()

    def request_log(self) -> list[AnsweredRequest]:
        return self._records.request_log()

    def _schedule(
        self, at_s: float, kind: EventKind, subject: Message | _DeviceEvent | LiveReplica
    ) -> None:
        self._in_transit += isinstance(subject, Message)
        heapq.heappush(self._events, (at_s, kind, next(self._order), subject))

    def _attempt(self, now_s: float, message: Message) -> None:
        message.attempts += 1
        message.reached_s = now_s
        replica = self._balancer.pick(self._ready, message.avoid)
        if self._model.service.profile.event_loop is None:
            self._admit(now_s, message, replica)
        else:
            self._reach(now_s, message, replica)

    def _reach(self, now_s: float, message: Message, replica: LiveReplica) -> None:
        """Let the event loop read a request, or refuse it if it would be too late."""
        assert self._model.service.profile.event_loop is not None
        work_s = 1e-3 * self._model.service.profile.event_loop.request_ms
        read_s = max(now_s, replica.loop_free_s) + work_s
        is_full = replica.load >= self._model.concurrency
        since_s = now_s - (read_s - now_s)  # its answer waits in the same queue
        if is_full or not replica.core.has_room(1 + len(replica.unread), read_s, since_s):
            refusal = replica.core.refusal(1, now_s, now_s)
            replica.core.count_refused(refusal, 1, now_s)
            self._refuse(now_s, message, replica, refusal)
            return
        self._count_ongoing(now_s, replica)
        message.read_s = self._use_loop(now_s, replica, work_s)
        self._in_transit += 1
        replica.unread.append(message)
        self._schedule(message.read_s, EventKind.READ, replica)

    def _use_loop(self, now_s: float, replica: LiveReplica, work_s: float) -> float:
        """Add work to the event loop; return when it will be done."""
        replica.loop_free_s = max(now_s, replica.loop_free_s) + work_s
        self._records.loops_busy_s += work_s
        return replica.loop_free_s

    def _read(self, now_s: float, replica: LiveReplica) -> None:
        self._count_ongoing(now_s, replica)
        self._in_transit -= 1
        self._admit(now_s, replica.unread.popleft(), replica, is_read=True)
        self._drain_core(now_s, replica)

    def _drain_core(self, now_s: float, replica: LiveReplica) -> None:
        """Let the core of a draining replica stop waiting, once no more requests will come."""
        if replica.draining and not replica.unread:
            replica.core.drain()
            if replica.batch is None:
                self._decide(now_s, replica)

    def _admit(
        self, now_s: float, message: Message, replica: LiveReplica, *, is_read: bool = False
    ) -> None:
        refusal = replica.core.arrive(now_s, Request(message.reached_s, 1, message))
        if refusal is not None:
            self._refuse(now_s, message, replica, refusal, is_read=is_read)
            return
        replica.offered += 1
        self._count_ongoing(now_s, replica)
        replica.messages.append(message)
        if replica.batch is None:
            self._decide(now_s, replica)

    def _refuse(
        self,
        now_s: float,
        message: Message,
        replica: LiveReplica,
        refusal: Refusal,
        *,
        is_read: bool = False,
    ) -> None:
        """Refuse a request. It is retried elsewhere, unless it was read or is too late."""
        replica.offered += 1
        if refusal is Refusal.EXPIRED:
            self._records.give_up(message)
            replica.expired += 1
            replica.late += 1
            return
        replica.refused += 1
        # HAProxy does not retry at the only replica.
        if self._ready != [replica] and not is_read:
            self._retry(now_s, message, replica.slot)
        else:
            self._records.give_up(message)

    def _retry(self, now_s: float, message: Message, avoid: int | None) -> None:
        if message.attempts > self._model.retries:
            self._records.give_up(message)
            return
        message.avoid = avoid
        self._schedule(now_s + 1e-3 * self._model.service.delays.try_ms, EventKind.RETRY, message)

    def _decide(self, now_s: float, replica: LiveReplica) -> None:
        """Start a batch on a free device if the core says so, or schedule the next decision."""
        batch = replica.core.next_batch(now_s)
        self._drop_expired(now_s, replica)
        replica.decision += 1
        replica.batch = batch
        if batch is not None:
            batch_s = self._batch_s(batch.size, replica)
            self._records.batch_started(now_s, batch.size, batch_s)
            self._schedule(now_s + batch_s, EventKind.DEVICE, (replica, replica.decision))
        elif replica.core.wake_at_s is not None:
            due_s = replica.core.wake_at_s
            self._schedule(due_s, EventKind.DEVICE, (replica, replica.decision))
        elif replica.draining and not replica.load:
            replica.drained_at_s = max(now_s, replica.loop_free_s)

    def _batch_s(self, size: int, replica: LiveReplica) -> float:
        """Return the time of a batch, drawn at random if batch times vary."""
        batch_s = 1e-3 * self._model.service.limits.latency_ms[size - 1]
        times = self._batch_times
        if not times.ranks.size:
            return batch_s
        return batch_s * draw_ratio(times.ranks, times.ratios, size, replica.batch_random, 0)

    def _drop_expired(self, now_s: float, replica: LiveReplica) -> None:
        """Drop the oldest requests, which a batch would have answered too late."""
        expired = len(replica.core.deadline_missed)
        if not expired:
            return
        self._count_ongoing(now_s, replica)
        replica.core.deadline_missed.clear()
        for _ in range(expired):
            self._records.give_up(replica.messages.popleft())
        replica.expired += expired
        replica.late += expired

    def _complete(self, now_s: float, replica: LiveReplica) -> None:
        """End the batch on the device, if any; its answers leave once the event loop sends them."""
        if replica.batch is None:
            return
        self._count_ongoing(now_s, replica)
        size = replica.batch.size
        replica.batch = None
        replica.core.device_free()
        answered_s, event_loop = now_s, self._model.service.profile.event_loop
        if event_loop is not None:
            answered_s = self._use_loop(now_s, replica, 1e-3 * event_loop.batch_ms)
            self._ongoing_s += size * (answered_s - now_s)
        for _ in range(size):
            message = replica.messages.popleft()
            message.batch_size = size
            self._records.answer(answered_s, replica, message)

    def _count_ongoing(self, now_s: float, replica: LiveReplica) -> None:
        """Add the time that requests have spent in a replica since the last call."""
        self._ongoing_s += replica.load * (now_s - replica.counted_s)
        replica.counted_s = now_s
