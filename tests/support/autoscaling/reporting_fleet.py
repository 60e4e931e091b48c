"""A fleet on virtual time for tests of the autoscaler: its replicas batch, and report every second.

Each replica of a `Fleet` is a queue with a finite waiting room in front of a device that starts a
batch whenever it is free. The fleet's Poisson arrivals are sent to random replicas, without
retries. It is independent of the simulator on purpose, and as short as possible.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from autoscaler.controller import Autoscaler
from autoscaler.decision import Decision, FleetState
from autoscaler.reports import ReplicaReport
from autoscaler.settings import AutoscalerSettings
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.solvers.load_lateness import solve_load_lateness_curve

START_S = 1_700_000_000.0
#: The emulated P4, 20 times slower: a batch of 32 takes 216 ms, so a replica serves 148 requests/s.
PROFILE = Profile("m", "d", 21.04 + 6.102 * np.arange(1, 33))
SLA = ServiceLevelObjective(500.0, 99.0)
#: What is left of the SLA at the replica.
MAX_RESPONSE_S = 0.4995
ROOM = 32
CURVE = solve_load_lateness_curve(PROFILE, ServiceLevelObjective(1e3 * MAX_RESPONSE_S, 99.0), ROOM)
PER_REPLICA = CURVE.sla_rate_per_s
#: A refused request is not retried.
SETTINGS = AutoscalerSettings(window_s=10, scale_down_delay_s=60, retries=0)


class Replica:
    """A queue in front of a device whose batches take `batch_ms(size)`."""

    def __init__(self, ready_s: float, batch_ms: Callable[[int], float]) -> None:
        self.ready_s = ready_s
        self.offered = self.refused = self.answered = self.late = 0
        self.waiting: list[float] = []
        self._batch_ms = batch_ms
        self._free_s = ready_s

    def serve(self, arrivals_s: Iterable[float], until_s: float) -> None:
        """Take arrivals, in order, and start the batches that begin before `until_s`."""
        for arrival_s in arrivals_s:
            if self._free_s < arrival_s:
                self._start_batches(arrival_s)
            self.offered += 1
            if len(self.waiting) < ROOM:
                self.waiting.append(arrival_s)
            else:
                self.refused += 1
        self._start_batches(until_s)

    def _start_batches(self, until_s: float) -> None:
        while self.waiting:
            start_s = max(self._free_s, self.waiting[0])
            if start_s >= until_s:
                return
            size = min(32, len(self.waiting))
            batch, self.waiting = self.waiting[:size], self.waiting[size:]
            self._free_s = start_s + 1e-3 * self._batch_ms(size)
            self.answered += size
            if self._free_s - batch[0] > MAX_RESPONSE_S:
                self.late += sum(self._free_s - arrived > MAX_RESPONSE_S for arrived in batch)


class Fleet:
    """Replicas that share Poisson arrivals and follow the autoscaler's decisions."""

    def __init__(
        self,
        replicas: int = 1,
        *,
        settings: AutoscalerSettings = SETTINGS,
        seed: int = 1,
        start_time_s: float = 5.0,
        report_delay_s: int = 2,
        batch_ms: Callable[[int], float] | None = None,
        **report: Any,
    ) -> None:
        self.autoscaler = Autoscaler(settings)
        self.rng = np.random.default_rng(seed)
        self.second = 0
        self.start_time_s, self.report_delay_s = start_time_s, report_delay_s
        self.report = report
        self.replicas: dict[str, Replica] = {}
        self.made = 0
        self.starts_fail = False
        self.silent: set[str] = set()
        self.history: list[int] = []
        self.offered = self.missed = self.waiting = 0
        self._batch_ms = batch_ms or (lambda size: float(PROFILE.latency_ms[size - 1]))
        self._sent: list[tuple[int, list[ReplicaReport]]] = []
        for _ in range(replicas):
            self._order(0.0)

    def _order(self, ready_s: float) -> None:
        self.replicas[f"r{self.made}"] = Replica(ready_s, self._batch_ms)
        self.made += 1

    def run(self, seconds: float, rate_per_s: float, **bounds: int) -> Decision:
        for _ in range(round(seconds)):
            decision = self.step(rate_per_s, **bounds)
        return decision

    def step(self, rate_per_s: float, min_replicas: int = 1, max_replicas: int = 50) -> Decision:
        ready = self.ready
        arrivals_s = self.second + np.sort(self.rng.random(self.rng.poisson(rate_per_s)))
        self.second += 1
        self.offered += arrivals_s.size
        if not ready:
            self.waiting += arrivals_s.size
        else:
            self.waiting = 0
            chosen = self.rng.integers(len(ready), size=arrivals_s.size)
            for number, name in enumerate(ready):
                replica = self.replicas[name]
                missed = replica.refused + replica.late
                replica.serve(arrivals_s[chosen == number].tolist(), self.second)
                self.missed += replica.refused + replica.late - missed
        reports = [self.report_of(name) for name in ready if name not in self.silent]
        self._sent.append((self.second + self.report_delay_s, reports))
        while self._sent and self._sent[0][0] <= self.second:
            self.autoscaler.observe(self._sent.pop(0)[1], START_S + self.second)
        decision = self.autoscaler.decide(
            START_S + self.second,
            FleetState(len(self.replicas), min_replicas, max_replicas, len(ready), self.waiting),
        )
        while len(self.replicas) < decision.replicas:
            self._order(np.inf if self.starts_fail else self.second + self.start_time_s)
        while len(self.replicas) > decision.replicas:
            self.replicas.popitem()
        self.history.append(decision.replicas)
        return decision

    @property
    def ready(self) -> list[str]:
        return [name for name, replica in self.replicas.items() if replica.ready_s <= self.second]

    def report_of(self, name: str) -> ReplicaReport:
        replica = self.replicas[name]
        report = ReplicaReport(
            replica_id=name,
            time_s=START_S + self.second,
            offered_total=replica.offered,
            refused_total=replica.refused,
            queue_length=len(replica.waiting),
            full_batch_size=32.0,
            full_batch_ms=float(PROFILE.latency_ms[-1]),
            sla_response_time_ms=SLA.response_time_ms,
            sla_percentile=SLA.percentile,
            start_time_s=self.start_time_s,
            sla_rate_per_s=CURVE.sla_rate_per_s,
            late_shares=CURVE.late_shares,
            answered_total=replica.answered,
            late_total=replica.late,
            counted_s=self.second - replica.ready_s,
        )
        return replace(report, **self.report)

    @property
    def changes(self) -> list[int]:
        return [change for change in np.diff(self.history).tolist() if change]

    def missed_share(self) -> float:
        """Return the share of requests that were refused or late since the last call."""
        offered, missed, self.offered, self.missed = self.offered, self.missed, 0, 0
        return missed / offered


def required_replicas(curve: LoadLatenessCurve, rate_per_s: float) -> int:
    """Return the least replicas that keep the SLA at `rate_per_s`."""
    return int(np.ceil(rate_per_s / curve.sla_rate_per_s))
