"""Goodput under an SLA: the highest Poisson rate at which its percentile is kept.

On an emulated device, servers differ in when they start batches and in their own overhead. The
batching model gives a bound there: the highest rate at which some control limit and max wait keep
the SLA, if HTTP costs nothing. On a real model there is no such bound, because the server and the
model share the machine, so servers are only compared with each other.
"""

import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.peers.models import DEVICE_PROFILE, HOSTED, PERCENTILE
from benchmarks.peers.open_loop import open_loop
from benchmarks.peers.protocols import Workload
from benchmarks.peers.servers import PORT, first_request
from loadtests.records import Outcome
from loadtests.schedule import Step, poisson_schedule
from policy.objective import ServiceLevelObjective
from policy.optimization import solve
from policy.profile import Profile

PROFILE = Profile.from_dict(DEVICE_PROFILE)
RESPONSE_TIME_MS = HOSTED["emulated"].response_time_ms
OBJECTIVE = ServiceLevelObjective(RESPONSE_TIME_MS, PERCENTILE)
SETTLE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Probe:
    """A run at one rate, and the share of the requests answered rightly in time."""

    arrival_rate_per_s: float
    service_level: float
    wrong: int

    @property
    def holds(self) -> bool:
        """Whether the SLA's percentile was kept."""
        return self.service_level >= OBJECTIVE.least_level


def possible_rate_per_s() -> float:
    """Return the highest rate at which the SLA can be kept on the emulated device, by the model."""

    def holds(rate_per_s: float) -> bool:
        return solve(PROFILE, rate_per_s, OBJECTIVE).meets_sla

    return _bisect(holds, 0.0, 0.999 * PROFILE.capacity_per_s, 14)


def goodput(
    workload: Workload,
    highest_per_s: float,
    run_s: float,
    rounds: int,
    response_time_ms: float = RESPONSE_TIME_MS,
) -> list[Probe]:
    """Search for the highest rate at which a server keeps the SLA, by bisection.

    The search covers 0 to 1.1 times `highest_per_s`, because a short run may be lucky. At each rate
    two of three runs decide: one bad second of the machine makes a run fail. Servers with the same
    `highest_per_s` get the same arrivals.
    """
    probes: list[Probe] = []
    _probe(workload, 0.3 * highest_per_s, 2.0, response_time_ms)

    def holds(rate_per_s: float) -> bool:
        runs: list[Probe] = []
        while max(Counter(run.holds for run in runs).values(), default=0) < 2:
            settle(workload, response_time_ms)
            runs.append(_probe(workload, rate_per_s, run_s, response_time_ms, seed=len(runs)))
        probes.append(runs[-1])
        return runs[-1].holds

    _bisect(holds, 0.0, 1.1 * highest_per_s, rounds)
    return probes


def best_rate_per_s(probes: list[Probe]) -> float:
    """Return the highest rate that kept the SLA; 0 if none did."""
    return max((probe.arrival_rate_per_s for probe in probes if probe.holds), default=0.0)


def settle(workload: Workload, response_time_ms: float = RESPONSE_TIME_MS) -> None:
    """Wait until a server has worked off earlier requests: until it answers quickly three times."""
    request = first_request(workload)
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    quick = 0
    while quick < 3 and time.monotonic() < deadline_s:
        started_s = time.monotonic()
        quick += 1
        with suppress(OSError), urllib.request.urlopen(request, timeout=SETTLE_TIMEOUT_S):
            pass
        if time.monotonic() - started_s > 1e-3 * response_time_ms:
            quick = 0


def _probe(
    workload: Workload,
    rate_per_s: float,
    run_s: float,
    response_time_ms: float = RESPONSE_TIME_MS,
    seed: int = 0,
) -> Probe:
    arrivals_s = poisson_schedule([Step(run_s, rate_per_s)], seed=seed).arrivals_s
    service_level, wrong = 0.0, 0
    # A server that has died keeps no rate.
    with suppress(ConnectionError):
        run = open_loop(workload, arrivals_s, PORT)
        service_level = float(run.in_time(response_time_ms).mean())
        wrong = int((run.outcome == Outcome.WRONG).sum())
    return Probe(rate_per_s, service_level, wrong)


def _bisect(holds: Callable[[float], bool], low: float, high: float, rounds: int) -> float:
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
