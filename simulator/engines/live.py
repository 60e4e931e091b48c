"""The live engine: the batcher core that serves live traffic, on virtual time.

Event by event, with one queue of events for the whole fleet, in plain Python. It is slow and easy
to follow, and it knows whatever the core knows; `simulator.engines.compiled` is held to it.
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

from deployments.batcher.core import Batch, BatcherCore, Request
from simulator.engines.counters import FleetCounters
from simulator.engines.interface import Answered, ReplicaCounters, ReplicaModel, Routing
from simulator.engines.kernel import bin_of, draw

FloatArray = NDArray[np.float64]


class _Kind(IntEnum):
    """What happens first of what happens at the same time."""

    DEVICE = 0
    RETRY = 1
    ARRIVAL = 2


@dataclass
class _Message:
    """A request of a client, wherever it is."""

    sent_s: float
    tries: int = 0
    avoid: int | None = None


@dataclass(eq=False)
class _Replica:
    place: int
    core: BatcherCore
    counted_s: float
    batch: Batch | None = None
    gone_s: float = math.inf
    draining: bool = False
    #: Events of an older turn have been overtaken.
    turn: int = 0
    #: What it holds, in the order in which it came.
    messages: deque[_Message] = field(default_factory=deque)
    offered: int = 0
    refused: int = 0
    completed: int = 0
    late: int = 0


class LiveEngine:
    """An engine around `deployments.batcher.core.BatcherCore`; see `simulator.engines.interface.Engine`.

    Parameters
    ----------
    model : ReplicaModel
    tally : FleetCounters
        Where answers and refusals are counted.
    seed : int
        Of the balancer's choices.
    keeps_log : bool
        Whether each answered request is remembered.
    """

    def __init__(
        self, model: ReplicaModel, tally: FleetCounters, seed: int, keeps_log: bool = False
    ) -> None:
        self._model = model
        self._tally = tally
        self._random = np.array([seed], np.uint64)
        self._answered: list[Answered] | None = [] if keeps_log else None
        self._replicas: dict[int, _Replica] = {}
        self._ready: list[_Replica] = []
        self._events: list[tuple[float, _Kind, int, _Message | tuple[_Replica, int]]] = []
        self._order = count()
        #: Who waits for a first replica, and since when.
        self._held: list[tuple[float, _Message]] = []
        self._open_since_s = 0.0
        self._under_way = 0
        self._ongoing_s = 0.0
        self._now_s = 0.0
        self.refused = 0

    def add(self, place: int, now_s: float) -> None:
        """Put a new, empty replica in a place."""
        core = BatcherCore(self._model.table, self._model.limits)
        self._replicas[place] = _Replica(place, core, now_s)

    def route_to(self, places: Sequence[int], now_s: float) -> None:
        """Say which replicas take requests from now on."""
        if not self._ready:
            self._open_since_s = now_s
        self._ready = [self._replicas[place] for place in places]

    def offer(self, sent_s: FloatArray) -> None:
        """Give the times at which clients send their next requests, rising."""
        delay_s = 1e-3 * self._model.delays.request_delay_ms
        for sent in sent_s.tolist():
            self._put(sent + delay_s, _Kind.ARRIVAL, _Message(sent))

    def advance(self, until_s: float) -> None:
        """Simulate all tries before `until_s`, and what devices have done by then."""
        if self._ready:
            held, self._held = self._held, []
            for _, message in held:
                self._attempt(self._open_since_s, message)
        events = self._events
        while events and (
            events[0][0] < until_s or (events[0][0] == until_s and events[0][1] is _Kind.DEVICE)
        ):
            now_s, _, _, what = heapq.heappop(events)
            if math.isinf(now_s):
                break
            if isinstance(what, _Message):
                self._under_way -= 1
                if self._ready:
                    self._attempt(now_s, what)
                else:
                    self._held.append((now_s, what))
            else:
                replica, turn = what
                if turn == replica.turn:
                    self._complete(now_s, replica)
                    self._decide(now_s, replica)
        if math.isfinite(until_s):
            for held_s, _ in self._held:
                self._ongoing_s += until_s - max(held_s, self._now_s)
            self._now_s = until_s
            for replica in self._replicas.values():
                self._count_ongoing(until_s, replica)

    def drain(self, place: int, now_s: float) -> None:
        """Have a replica start what waits without waiting for others."""
        replica = self._replicas[place]
        replica.draining = True
        replica.core.drain()
        if replica.batch is None:
            self._decide(now_s, replica)

    def gone_s(self, place: int) -> float:
        """When a draining replica had finished what it had; infinite while it has not."""
        return self._replicas[place].gone_s

    def kill(self, place: int, now_s: float) -> None:
        """End a replica at once: the balancer sends what it had to others."""
        replica = self._replicas.pop(place)
        replica.turn += 1
        for message in replica.messages:
            self._try_again(now_s, message, None)

    def finish(self, now_s: float) -> None:
        """After the last request was sent, answer or refuse all that are still under way."""
        while self._under_way or (self._held and self._ready):
            now_s += max(1e-3, 1e-3 * self._model.delays.try_ms)
            self.advance(now_s)
        for _, message in self._held:
            self._give_up(message)
        for place, replica in self._replicas.items():
            if replica.core.queue_length:
                self.drain(place, now_s)
        self.advance(math.inf)

    def counters(self, place: int) -> ReplicaCounters:
        """Tell what a replica has counted."""
        replica = self._replicas[place]
        return ReplicaCounters(
            replica.offered,
            replica.refused,
            replica.completed,
            replica.late,
            replica.core.queue_length,
        )

    def take_ongoing_s(self) -> float:
        """Give the request-seconds in replicas, or waiting for a first one, since last asked."""
        ongoing_s, self._ongoing_s = self._ongoing_s, 0.0
        return ongoing_s

    def log(self) -> list[Answered]:
        """Give the requests answered, by the time they were sent; empty if no log is kept."""
        return sorted(self._answered or [])

    def _put(self, at_s: float, kind: _Kind, what: "_Message | tuple[_Replica, int]") -> None:
        self._under_way += kind is not _Kind.DEVICE
        heapq.heappush(self._events, (at_s, kind, next(self._order), what))

    def _attempt(self, now_s: float, message: _Message) -> None:
        message.tries += 1
        replica = self._route(message.avoid)
        replica.offered += 1
        if replica.core.arrive(now_s, Request(now_s, 1, message)) is not None:
            replica.refused += 1
            self._try_again(now_s, message, replica.place)
            return
        self._count_ongoing(now_s, replica)
        replica.messages.append(message)
        if replica.batch is None:
            self._decide(now_s, replica)

    def _try_again(self, now_s: float, message: _Message, avoid: int | None) -> None:
        if message.tries > self._model.retries:
            self._give_up(message)
            return
        message.avoid = avoid
        self._put(now_s + 1e-3 * self._model.delays.try_ms, _Kind.RETRY, message)

    def _give_up(self, message: _Message) -> None:
        self._tally.refused[int(message.sent_s)] += 1
        self.refused += 1

    def _decide(self, now_s: float, replica: _Replica) -> None:
        """Ask the core of a free device, and put down when it must be asked again."""
        batch = replica.core.next_batch(now_s)
        replica.turn += 1
        replica.batch = batch
        if batch is not None:
            latency_ms = self._model.limits.latency_ms[batch.size - 1]
            self._put(now_s + 1e-3 * latency_ms, _Kind.DEVICE, (replica, replica.turn))
            if self._model.energy_mj is not None:
                second = min(int(now_s), self._tally.energy_j.size - 1)
                self._tally.energy_j[second] += 1e-3 * self._model.energy_mj[batch.size - 1]
        elif replica.core.wake_at_s is not None:
            self._put(replica.core.wake_at_s, _Kind.DEVICE, (replica, replica.turn))
        elif replica.draining:
            replica.gone_s = now_s

    def _complete(self, now_s: float, replica: _Replica) -> None:
        """Answer the requests of the batch on the device, if there is one."""
        if replica.batch is None:
            return
        self._count_ongoing(now_s, replica)
        at_client, at_replica = self._model.objective, self._model.objective_at_replica
        for part in replica.batch.slices:
            message: _Message = part.request.content
            response_ms = 1e3 * (now_s + 1e-3 * self._model.delays.reply_delay_ms - message.sent_s)
            self._tally.histogram[bin_of(response_ms)] += 1
            if not at_client.is_late(response_ms):
                self._tally.in_time[int(message.sent_s)] += 1
            if at_replica.is_late(1e3 * (now_s - part.request.arrival_s)):
                replica.late += 1
            if self._answered is not None:
                size, tries = replica.batch.size, message.tries
                self._answered.append(Answered(message.sent_s, response_ms, size, tries))
            replica.messages.popleft()
        replica.completed += replica.batch.size
        replica.batch = None
        replica.core.device_free()

    def _count_ongoing(self, now_s: float, replica: _Replica) -> None:
        self._ongoing_s += len(replica.messages) * (now_s - replica.counted_s)
        replica.counted_s = now_s

    def _route(self, avoid: int | None) -> _Replica:
        ready = self._ready
        if self._model.routing is Routing.RANDOM:
            return self._pick_random(avoid)
        if self._model.routing is Routing.POWER_OF_TWO:
            pair = (self._pick_random(avoid), self._pick_random(avoid))
            return min(pair, key=lambda replica: len(replica.messages))
        offset = draw(self._random, len(ready))
        others = [
            replica
            for replica in (*ready[offset:], *ready[:offset])
            if replica.place != avoid or len(ready) == 1
        ]
        return min(others, key=lambda replica: len(replica.messages))

    def _pick_random(self, avoid: int | None) -> _Replica:
        ready = self._ready
        index = draw(self._random, len(ready))
        if ready[index].place == avoid and len(ready) > 1:
            index = (index + 1 + draw(self._random, len(ready) - 1)) % len(ready)
        return ready[index]
