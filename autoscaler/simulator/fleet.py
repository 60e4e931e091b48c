"""Life cycle of the replicas of a simulated fleet: ordered, started, drained, killed, paid for."""

import heapq
import math
from dataclasses import dataclass
from itertools import count

from numpy.random import Generator

from autoscaler.simulator.engines.compiled import CompiledEngine
from autoscaler.simulator.scenario import Failures
from autoscaler.simulator.standbys import StandbyPool
from autoscaler.simulator.start_time import StartTime


@dataclass(eq=False)
class Replica:
    """A replica of the fleet; its name in reports is never reused.

    The cluster had room for it at `created_s`, paid for from then on, and it began to serve at
    `ready_s`; NaN before. Its slot in the engine is -1 before it serves.
    """

    name: str
    start_time_s: float
    created_s: float = math.nan
    ready_s: float = math.nan
    slot: int = -1


#: Placeholder of an event without a replica: the cluster has room again.
_NOBODY = Replica("", math.nan)


class Fleet:
    """The replicas, and the engine that moves requests through them.

    `replicas` are ready at time 0 and paid for from then on. Without a `standby_start_time` the
    fleet has no standbys. `ready` and `starting` list the oldest first.
    """

    def __init__(
        self,
        engine: CompiledEngine,
        replicas: int,
        start_time: StartTime,
        failures: Failures,
        start_random: Generator,
        failure_random: Generator,
        standby_start_time: StartTime | None = None,
    ) -> None:
        self.ready: list[Replica] = []
        self.starting: list[Replica] = []
        self._engine = engine
        self._start_time = start_time
        self._failures = failures
        self._start_random = start_random
        self._failure_random = failure_random
        self._pool: StandbyPool | None = None
        if standby_start_time is not None:
            share = failures.failed_start_share
            self._pool = StandbyPool(standby_start_time, start_time, share, start_random)
        self._draining: list[Replica] = []
        # Replicas of `starting` without room in the cluster, the oldest order first.
        self._pending: list[Replica] = []
        self._free_slots: list[int] = []
        self._slots = 0
        self._names = count()
        self._sequence = count()
        # (time, order, replica): a replica becomes ready, if it is still starting; with None, a
        # random ready one dies.
        self._events: list[tuple[float, int, Replica | None]] = []
        self._paid_s = 0.0
        self.now_s = 0.0
        # Replica-seconds since `run_until` last returned.
        self._ordered_s = self._ready_s = self._existing_s = 0.0
        for _ in range(replicas):
            # These serve at once, and report a start time as if they had started before.
            start_time_s = start_time.draw_s(start_random)
            replica = Replica(self._next_name(), start_time_s, created_s=0.0)
            self.starting.append(replica)
            self._become_ready(0.0, replica)
        for time_s in sorted(failures.times_s):
            self._schedule(time_s, None)
        for _, end_s, _ in failures.full_cluster:
            self._schedule(end_s, _NOBODY)

    @property
    def ordered(self) -> int:
        """Replicas that serve or start; draining replicas are excluded."""
        return len(self.ready) + len(self.starting)

    @property
    def standbys(self) -> int:
        """Standbys, starting ones included."""
        return 0 if self._pool is None else len(self._pool)

    @property
    def _existing(self) -> int:
        return self.ordered - len(self._pending) + len(self._draining)

    def run_until(self, until_s: float) -> tuple[float, float, float]:
        """Simulate up to and including `until_s`; return the mean replicas since the last call.

        They are those ordered, ready, and existing: starting and draining replicas exist, replicas
        without room in the cluster do not.
        """
        since_s = self.now_s
        while self._events and self._events[0][0] <= until_s:
            time_s, _, replica = heapq.heappop(self._events)
            if replica is None:
                if self.ready:
                    self._advance(time_s)
                    victim = self._failure_random.integers(len(self.ready))
                    self._kill(time_s, self.ready[victim])
            elif replica is _NOBODY:
                self._advance(time_s)
                self._create_pending()
            elif replica in self.starting:
                self._advance(time_s)
                self._end_start(time_s, replica)
        self._advance(until_s)
        self._release_drained()
        length_s = until_s - since_s
        spent_s = self._ordered_s, self._ready_s, self._existing_s
        self._ordered_s = self._ready_s = self._existing_s = 0.0
        ordered, ready, existing = (each_s / length_s for each_s in spent_s)
        return ordered, ready, existing

    def scale_to(self, replicas: int, standbys: int = 0) -> None:
        """Order or remove replicas: starting ones before ready ones, the youngest first.

        Standbys become replicas first, and removed replicas become standbys while standbys are
        missing.
        """
        while self.ordered < replicas:
            self._order_replica(self.now_s)
        while self.ordered > replicas and self.starting:
            cancelled = self.starting.pop()
            if cancelled in self._pending:
                self._pending.remove(cancelled)
            else:
                self._pay(cancelled, self.now_s)
                self._keep_as_standby(cancelled.created_s + cancelled.start_time_s, standbys)
        if self.ordered > replicas:
            removed = self.ready[replicas:]
            del self.ready[replicas:]
            self._route()
            for replica in removed:
                self._engine.drain(replica.slot, self.now_s)
                self._keep_as_standby(self.now_s, standbys)
            self._draining += removed
            self._release_drained()
        self._create_pending()
        if self._pool is not None:
            self._pool.scale_to(self.now_s, standbys)

    def _keep_as_standby(self, up_s: float, wanted: int) -> None:
        if self._pool is not None and len(self._pool) < wanted:
            self._pool.put(self.now_s, up_s)

    def finish(self) -> float:
        """Finish every request in flight and return the replica-seconds paid for in the run."""
        end_s = self.now_s
        self._engine.finish(end_s)
        for replica in (*self.ready, *self.starting):
            if replica not in self._pending:
                self._paid_s += end_s - replica.created_s
        for replica in self._draining:
            self._paid_s += min(self._engine.drained_at_s(replica.slot), end_s) - replica.created_s
        if self._pool is not None:
            self._paid_s += self._pool.finish(end_s)
        return self._paid_s

    def _advance(self, until_s: float) -> None:
        passed_s = until_s - self.now_s
        self._ordered_s += self.ordered * passed_s
        self._ready_s += len(self.ready) * passed_s
        self._existing_s += self._existing * passed_s
        self._engine.advance(until_s)
        self.now_s = until_s

    def _route(self) -> None:
        self._engine.route_to([replica.slot for replica in self.ready], self.now_s)

    def _order_replica(self, now_s: float) -> None:
        start_time_s = None if self._pool is None else self._pool.take(now_s)
        if start_time_s is None:
            start_time_s = self._start_time.draw_s(self._start_random)
        replica = Replica(self._next_name(), start_time_s)
        self.starting.append(replica)
        self._pending.append(replica)
        self._create_pending()

    def _create_pending(self) -> None:
        """Create pending replicas as far as the cluster has room."""
        if not self._pending:
            return
        now_s = self.now_s
        while self._pending and self._existing < self._failures.room(now_s):
            replica = self._pending.pop(0)
            replica.created_s = now_s
            if replica.start_time_s > 0:
                self._schedule(now_s + replica.start_time_s, replica)
            else:
                self._become_ready(now_s, replica)

    def _end_start(self, now_s: float, replica: Replica) -> None:
        """Make a replica ready, or start another in its place if its start failed."""
        share = self._failures.failed_start_share
        if share and self._failure_random.random() < share:
            self.starting.remove(replica)
            self._pay(replica, now_s)
            self._order_replica(now_s)
        else:
            self._become_ready(now_s, replica)

    def _become_ready(self, now_s: float, replica: Replica) -> None:
        self.starting.remove(replica)
        if not self._free_slots:
            self._free_slots.append(self._slots)
            self._slots += 1
        replica.slot = heapq.heappop(self._free_slots)
        replica.ready_s = now_s
        self.ready.append(replica)
        self._engine.add(replica.slot, now_s)
        self._route()

    def _kill(self, now_s: float, replica: Replica) -> None:
        """Kill a replica and order another in its place, as Ray Serve does."""
        self.ready.remove(replica)
        self._route()
        self._engine.kill(replica.slot, now_s)
        self._release(replica, now_s)
        self._order_replica(now_s)

    def _release_drained(self) -> None:
        for replica in tuple(self._draining):
            drained_at_s = self._engine.drained_at_s(replica.slot)
            if drained_at_s <= self.now_s:
                self._draining.remove(replica)
                self._existing_s -= self.now_s - drained_at_s
                self._release(replica, drained_at_s)

    def _release(self, replica: Replica, now_s: float) -> None:
        heapq.heappush(self._free_slots, replica.slot)
        self._pay(replica, now_s)

    def _pay(self, replica: Replica, until_s: float) -> None:
        self._paid_s += until_s - replica.created_s

    def _schedule(self, time_s: float, replica: Replica | None) -> None:
        heapq.heappush(self._events, (time_s, next(self._sequence), replica))

    def _next_name(self) -> str:
        return f"replica-{next(self._names)}"
