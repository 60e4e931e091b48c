"""Faults between a fleet and its autoscaler: lost reports, wrong clocks, an absent controller."""

import math
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.controller import Autoscaler
from autoscaler.forecasting.load_history import RequiredRate
from autoscaler.reports import ReplicaReport
from autoscaler.simulator.arrivals import WithinSecond
from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
from autoscaler.simulator.scaling import FleetView
from autoscaler.simulator.scenario import Failures, Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.simulator.start_time import StartTime
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

#: Added to all times, so that no clock that is behind shows a time below 0.
EPOCH_S = 1e6
SAVE_PERIOD_S = 10.0


@dataclass(frozen=True)
class ReportFaults:
    #: Begin and end in s, and the share of the replicas that is not heard of. They serve.
    lost: tuple[tuple[float, float, float], ...]
    #: Share of the replicas whose clock is so far ahead.
    skewed_share: float
    skew_s: float
    #: Between two reports of a replica.
    interval_s: int
    #: Spans without a controller, which comes back with the state that it saved last.
    controller_away: tuple[tuple[float, float], ...]

    def is_away(self, now_s: float) -> bool:
        return any(begin_s <= now_s < end_s for begin_s, end_s in self.controller_away)

    def sent(self, now_s: float, reports: list[ReplicaReport]) -> list[ReplicaReport]:
        """Return the reports that get through, with `EPOCH_S` plus what their clock shows."""
        silent = max((share for b, e, share in self.lost if b <= now_s < e), default=0.0)
        through = []
        for report in reports:
            name = report.replica_id
            if _share_of(name, "silent") < silent:
                continue
            if (round(now_s) + math.floor(_share_of(name, "phase") * self.interval_s)) % (
                self.interval_s
            ):
                continue
            skew_s = self.skew_s if _share_of(name, "skew") < self.skewed_share else 0.0
            through.append(replace(report, time_s=EPOCH_S + report.time_s + skew_s))
        return through


def _share_of(name: str, salt: str) -> float:
    """Return a fixed pseudo-random number in [0, 1) for a replica."""
    return zlib.crc32(f"{salt} {name}".encode()) / 2**32


class FaultySojourn(SojournAutoscaler):
    def __init__(self, faults: ReportFaults) -> None:
        super().__init__()
        self._faults = faults
        self._saved: tuple[float, dict[str, Any]] = (-math.inf, {})
        self._is_away = False

    def replicas(self, view: FleetView) -> int:
        reports = self._faults.sent(view.now_s, view.reports())
        if self._faults.is_away(view.now_s):
            self._is_away = True
            return view.ordered
        self._save_or_restore(view.now_s)
        shifted = replace(view, now_s=view.now_s + EPOCH_S, reports=lambda: reports)
        return super().replicas(shifted)

    def _save_or_restore(self, now_s: float) -> None:
        if self._is_away:
            self._is_away = False
            self.autoscaler = Autoscaler()
            if self._saved[1]:
                self.autoscaler.load_state(self._saved[1])
            self._delayed.clear()
        elif now_s - self._saved[0] >= SAVE_PERIOD_S:
            self._saved = now_s, self.autoscaler.snapshot()()


#: About 70 requests per second and replica.
PROFILE = Profile("m", "d", 42.0 + 12.0 * np.arange(1, 17))
BATCHING = BatchingPolicy.from_control_limit(1, 16)
SLA = ServiceLevelObjective(800.0, 99.0)
SECONDS = 600
LEVEL_S = 200
START_S = 20.0
#: Time after the last change in which the right number must be reached.
SETTLING_S = 100


def run(levels, failures, autoscaler, seed):
    """Simulate a load that jumps between levels, in replicas' worth; return need and orders."""
    scenario = Scenario(
        PROFILE,
        SLA,
        np.zeros(1),
        batching=BATCHING,
        start_time=StartTime(START_S, 0.2),
        within_second=WithinSecond.UNIFORM,
        replicas=math.ceil(1.3 * levels[0]),
        failures=failures,
        seed=seed,
    )
    rate_per_s = scenario.load_lateness_curve.sla_rate_per_s
    counts = np.random.default_rng(seed).poisson(np.repeat(levels, LEVEL_S) * rate_per_s)
    ordered = []

    class Recorder:
        name = "recorder"

        def replicas(self, view):
            ordered.append(autoscaler.replicas(view))
            return ordered[-1]

    simulate(replace(scenario, counts=counts.astype(float)), Recorder())
    window = RequiredRate(0.01)
    need = np.array([window.push(float(count)) for count in counts]) / rate_per_s
    return need, np.array(ordered), scenario.replicas


def random_faults(seed, length_s, replicas):
    """Draw about one fault of each kind; a full cluster has room for about `replicas`."""
    random = np.random.default_rng(seed)

    def span(longest_s):
        begin_s = random.uniform(0.1, 0.8) * length_s
        return begin_s, begin_s + random.uniform(0.1, 1.0) * longest_s

    def chance():
        return bool(random.random() < 0.5)

    failures = Failures(
        times_s=tuple(random.uniform(0, length_s, random.integers(0, 4)).tolist()),
        failed_start_share=float(random.uniform(0, 0.5)) if chance() else 0.0,
        full_cluster=((*span(600.0), int(replicas * random.uniform(0.5, 1.5))),)
        if chance()
        else (),
    )
    return failures, ReportFaults(
        lost=((*span(900.0), float(random.choice([0.2, 0.5, 1.0]))),) if chance() else (),
        skewed_share=float(random.choice([0.0, 0.3, 0.5])),
        skew_s=float(random.choice([-60.0, -4.0, 2.0, 30.0])),
        interval_s=int(random.choice([1, 1, 1, 10])),
        controller_away=(span(900.0),) if chance() else (),
    )


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    levels=st.lists(st.floats(1.5, 6.0), min_size=3, max_size=3),
)
@settings(max_examples=5)
def test_the_laws_hold_under_random_faults(seed, levels):
    failures, faults = random_faults(seed, SECONDS - SETTLING_S, 5)
    need, ordered, initial = run(levels, failures, FaultySojourn(faults), seed)
    # Never more than 1.5 times what was needed in the last hour; the run is shorter.
    allowed = np.maximum(np.ceil(1.5 * np.maximum.accumulate(need)), initial)
    assert np.all(ordered <= allowed)
    # Never fewer on silence: neither without reports nor without a controller.
    silent = np.zeros(SECONDS, bool)
    for begin_s, end_s, share in faults.lost:
        if share == 1:
            silent[math.ceil(begin_s) + 12 : math.floor(end_s)] = True
    for begin_s, end_s in faults.controller_away:
        silent[math.ceil(begin_s) : math.floor(end_s)] = True
    assert not np.any(np.diff(ordered, prepend=ordered[0])[silent] < 0)
    # Back to the right number after every fault.
    assert np.all(ordered[-20:] >= math.ceil(levels[-1]))
