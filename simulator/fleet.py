"""The replicas of a simulated fleet: ordered, started, drained, lost and paid for."""

import heapq
import math
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from policy.errors import InvalidInputError
from simulator.engines.interface import Engine

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class StartTime:
    """How long a replica takes from its order until it serves.

    Attributes
    ----------
    median_s : float
    spread : float
        Standard deviation of the logarithm: 0 is always the same time, 0.3 has one in twenty take
        1.6 times the median. The times are lognormal.

    Raises
    ------
    InvalidInputError
        A value is negative or not finite.
    """

    median_s: float = 60.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        for name in ("median_s", "spread"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidInputError(
                    f"start time: {name} must be at least 0, not {getattr(self, name)}"
                )

    def draw_s(self, random: Generator) -> float:
        """Draw one."""
        return self.median_s * math.exp(self.spread * random.standard_normal())


@dataclass(frozen=True)
class Failures:
    """When ready replicas die.

    Attributes
    ----------
    per_replica_hour : float
        Rate at which each dies, on its own.
    times_s : tuple of float
        Besides, at each of these times a ready replica picked at random dies, if there is one.

    Raises
    ------
    InvalidInputError
        A value is negative or not finite.
    """

    per_replica_hour: float = 0.0
    times_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for value in (self.per_replica_hour, *self.times_s):
            if not 0 <= value < math.inf:
                raise InvalidInputError(f"failures: must be at least 0, not {value}")


class _Phase(Enum):
    STARTING = auto()
    READY = auto()
    DRAINING = auto()
    GONE = auto()


@dataclass(eq=False)
class Replica:
    """A replica of the fleet.

    Attributes
    ----------
    name : str
    ordered_s, start_time_s : float
    place : int
        Its number in the engine, once it serves.
    """

    name: str
    ordered_s: float
    start_time_s: float
    place: int = -1
    phase: _Phase = field(default=_Phase.STARTING, repr=False)


class Fleet:
    """The replicas, and the engine that moves requests through them.

    Parameters
    ----------
    engine : Engine
    replicas : int
        Ready at time 0, and paid for from then on.
    start_time : StartTime
    failures : Failures
    start_random, failure_random : Generator
        What start times and failures are drawn from.

    Attributes
    ----------
    ready : list of Replica
        Those that serve, the oldest first.
    starting : list of Replica
        Those ordered and not yet ready, the oldest order first.
    start_times_s : list of float
        How long those took that have become ready since time 0, oldest first.
    """

    def __init__(
        self,
        engine: Engine,
        replicas: int,
        start_time: StartTime,
        failures: Failures,
        start_random: Generator,
        failure_random: Generator,
    ) -> None:
        self.ready: list[Replica] = []
        self.starting: list[Replica] = []
        self.start_times_s: list[float] = []
        self._engine = engine
        self._start_time = start_time
        self._failures = failures
        self._start_random = start_random
        self._failure_random = failure_random
        self._draining: list[Replica] = []
        self._free_places: list[int] = []
        self._places = 0
        self._names = count()
        self._order = count()
        # (time, order, replica or None): it becomes ready, it dies; None: any ready one dies.
        self._events: list[tuple[float, int, Replica | None]] = []
        self._paid_s = 0.0
        self._now_s = 0.0
        self._ordered_s = self._ready_s = 0.0
        for _ in range(replicas):
            # They serve at once, and tell what it took them before.
            replica = Replica(self._next_name(), 0.0, start_time.median_s)
            self.starting.append(replica)
            self._become_ready(0.0, replica)
        for time_s in sorted(failures.times_s):
            self._put(time_s, None)

    @property
    def ordered(self) -> int:
        """Replicas ordered: those that serve and those that start, without those leaving."""
        return len(self.ready) + len(self.starting)

    @property
    def now_s(self) -> float:
        """Up to when it was simulated."""
        return self._now_s

    def run_until(self, until_s: float) -> tuple[float, float]:
        """Simulate up to `until_s`; give ordered and ready replicas as means since the last time.

        What happens to replicas at `until_s` itself has happened.
        """
        since_s = self._now_s
        while self._events and self._events[0][0] <= until_s:
            time_s, _, replica = heapq.heappop(self._events)
            if replica is None:
                if self.ready:
                    self._advance(time_s)
                    self._die(time_s, self._any_ready())
            elif replica.phase is _Phase.STARTING:
                self._advance(time_s)
                self._become_ready(time_s, replica)
            elif replica.phase is _Phase.READY:
                self._advance(time_s)
                self._die(time_s, replica)
        self._advance(until_s)
        self._let_go()
        length_s = until_s - since_s
        means = self._ordered_s / length_s, self._ready_s / length_s
        self._ordered_s = self._ready_s = 0.0
        return means

    def scale_to(self, replicas: int) -> None:
        """Order replicas, or do without some: those that start first, the youngest first."""
        while self.ordered < replicas:
            self._place_order(self._now_s)
        while self.ordered > replicas and self.starting:
            self._pay(self.starting.pop(), self._now_s)
        if self.ordered > replicas:
            leaving = self.ready[replicas:]
            del self.ready[replicas:]
            self._route()
            for replica in leaving:
                replica.phase = _Phase.DRAINING
                self._engine.drain(replica.place, self._now_s)
            self._draining += leaving
            self._let_go()

    def finish(self) -> float:
        """End the run: what is under way is answered; give the replica-seconds paid for in all."""
        end_s = self._now_s
        self._engine.finish(end_s)
        for replica in (*self.ready, *self.starting):
            self._paid_s += end_s - replica.ordered_s
        for replica in self._draining:
            self._paid_s += min(self._engine.gone_s(replica.place), end_s) - replica.ordered_s
        return self._paid_s

    def _advance(self, until_s: float) -> None:
        passed_s = until_s - self._now_s
        self._ordered_s += self.ordered * passed_s
        self._ready_s += len(self.ready) * passed_s
        self._engine.advance(until_s)
        self._now_s = until_s

    def _route(self) -> None:
        self._engine.route_to([replica.place for replica in self.ready], self._now_s)

    def _place_order(self, now_s: float) -> None:
        start_time_s = self._start_time.draw_s(self._start_random)
        replica = Replica(self._next_name(), now_s, start_time_s)
        self.starting.append(replica)
        if start_time_s > 0:
            self._put(now_s + start_time_s, replica)
        else:
            self._become_ready(now_s, replica)

    def _become_ready(self, now_s: float, replica: Replica) -> None:
        self.starting.remove(replica)
        if not self._free_places:
            self._free_places.append(self._places)
            self._places += 1
        replica.place = heapq.heappop(self._free_places)
        replica.phase = _Phase.READY
        if now_s > 0:
            self.start_times_s.append(replica.start_time_s)
        self.ready.append(replica)
        self._engine.add(replica.place, now_s)
        self._route()
        if self._failures.per_replica_hour:
            mean_s = 3600 / self._failures.per_replica_hour
            self._put(now_s + self._failure_random.exponential(mean_s), replica)

    def _die(self, now_s: float, replica: Replica) -> None:
        """Lose a replica; as Ray Serve does, the fleet orders another in its place."""
        self.ready.remove(replica)
        self._route()
        self._engine.kill(replica.place, now_s)
        self._leave(replica, now_s)
        self._place_order(now_s)

    def _any_ready(self) -> Replica:
        return self.ready[int(self._failure_random.integers(len(self.ready)))]

    def _let_go(self) -> None:
        """Let those go that have finished what they had."""
        for replica in tuple(self._draining):
            gone_s = self._engine.gone_s(replica.place)
            if gone_s <= self._now_s:
                self._draining.remove(replica)
                self._leave(replica, gone_s)

    def _leave(self, replica: Replica, now_s: float) -> None:
        heapq.heappush(self._free_places, replica.place)
        self._pay(replica, now_s)

    def _pay(self, replica: Replica, until_s: float) -> None:
        replica.phase = _Phase.GONE
        self._paid_s += until_s - replica.ordered_s

    def _put(self, time_s: float, replica: Replica | None) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), replica))

    def _next_name(self) -> str:
        return f"replica-{next(self._names)}"
