"""Both engines agree request by request, so the compiled one decides as the live batcher core."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from autoscaler.simulator.engines.compiled import CompiledEngine
from autoscaler.simulator.engines.interface import Routing
from autoscaler.simulator.fleet import Failures
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import Simulation
from autoscaler.simulator.start_time import StartTime
from policy.batching_policy import BatchingPolicy
from policy.event_loop import EventLoopCosts
from policy.latency_quantiles import LatencyQuantiles
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import BatchingSettings
from policy.table import PolicyTable
from policy.try_delays import TryDelays
from tests.support.batching.live_engine import LiveEngine

DELAYS_MS = [0.0, 0.25, 3.0, 400.0]
LATENCIES_MS = [[2.0] * 6, [1.0, 2.5, 3.0, 3.0, 8.0, 9.5], np.linspace(8, 30, 6)]
#: The times of batches vary as much as these; the last, by batch size as well.
QUANTILES = [
    None,
    LatencyQuantiles(np.array([10.0, 90.0]), np.array([[0.8], [1.3]]) * np.ones(6)),
    LatencyQuantiles(
        np.array([50.0, 99.0]), np.array([np.linspace(0.6, 1.0, 6), np.linspace(4.0, 1.0, 6)])
    ),
]


class Scripted:
    """Order the given numbers of replicas, second by second, and keep the views."""

    name = "scripted"

    def __init__(self, numbers):
        self.numbers = numbers
        self.views = []

    def replicas(self, view):
        self.views.append((dataclasses.replace(view, reports=None), view.reports()))
        return self.numbers[len(self.views) % len(self.numbers)]


@st.composite
def policies(draw):
    """Draw a control limit, or a table that splits queues and leaves requests behind."""
    wait_ms = draw(st.none() | st.floats(0, 30))
    largest = draw(st.integers(1, 6))
    if draw(st.booleans()):
        limit = draw(st.integers(1, largest))
        return BatchingPolicy.from_control_limit(limit, largest, wait_ms)
    # Many zeros, so that the longest wait decides for long queues as well.
    sizes = [draw(st.sampled_from([0, 0, min(q, largest), 1])) for q in range(1, 9)]
    return BatchingPolicy((0, *sizes, draw(st.integers(1, largest))), wait_ms)


#: Event loop and device take turns to be the bottleneck; whole times let their events coincide.
COSTS_MS = st.sampled_from([0.0, 0.25, 1.0, 3.0]) | st.floats(0, 5)


@st.composite
def profiles(draw):
    latency_ms = np.array(draw(st.sampled_from(LATENCIES_MS)))
    return Profile(
        "model",
        "device",
        latency_ms,
        10 + latency_ms,
        idle_power_w=draw(st.sampled_from([None, 0.5])),
        latency_quantiles=draw(st.sampled_from(QUANTILES)),
        event_loop=draw(st.none() | st.builds(EventLoopCosts, COSTS_MS, COSTS_MS, st.booleans())),
    )


@st.composite
def scenarios(draw):
    rates = tuple(sorted(draw(st.sets(st.floats(5, 300), min_size=1, max_size=3))))
    table = PolicyTable(rates, tuple(draw(policies()) for _ in range(len(rates) + 1)))
    least = draw(st.integers(0, 1))
    return Scenario(
        draw(profiles()),
        ServiceLevelObjective(40.0, 99.0),
        np.array(draw(st.lists(st.integers(0, 400), min_size=3, max_size=6))),
        within_second=draw(st.sampled_from(["uniform", "linear"])),
        start_time=StartTime(draw(st.floats(0, 2)), draw(st.floats(0, 1))),
        seed=draw(st.integers(0, 1000)),
        routing=draw(st.sampled_from(Routing)),
        delays=draw(st.builds(TryDelays, *3 * [st.sampled_from(DELAYS_MS)], st.integers(0, 5))),
        batching=table,
        settings=BatchingSettings(
            serve_late=draw(st.booleans()),
            max_queue_rows=draw(st.sampled_from([1, 2, 7, 20])),
            max_age_ms=draw(st.sampled_from([0.0, 15.0, 2000.0, float("inf")])),
        ),
        replicas=draw(st.integers(least, 4)),
        min_replicas=least,
        max_replicas=12,
        failures=Failures(tuple(draw(st.lists(st.floats(0, 5), max_size=6)))),
    )


def run_both(scenario, numbers):
    for engine in (LiveEngine, CompiledEngine):
        autoscaler = Scripted(numbers)
        simulation = Simulation(scenario, autoscaler, engine=engine, log_requests=True)
        yield simulation.run(), simulation.request_log(), autoscaler.views


REPLICAS = st.lists(st.integers(0, 12), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(scenarios(), REPLICAS)
def test_both_engines_agree_request_by_request(scenario, numbers):
    (live, live_log, live_views), (compiled, compiled_log, compiled_views) = run_both(
        scenario, numbers
    )

    assert compiled_log == live_log
    for name in ("offered", "in_time", "refused", "ordered", "ready", "histogram"):
        assert_array_equal(getattr(compiled, name), getattr(live, name), name)
    assert_allclose(compiled.energy_j, live.energy_j, rtol=1e-12)
    assert compiled.paid_replica_s == live.paid_replica_s
    for (view, reports), (expected, expected_reports) in zip(
        compiled_views, live_views, strict=True
    ):
        assert reports == expected_reports
        assert (view.ordered, view.ready) == (expected.ordered, expected.ready)
        assert_allclose(view.ongoing, expected.ongoing, rtol=1e-9, atol=1e-9)
    check_that_each_request_is_answered_once_or_refused(scenario, compiled, compiled_log)


def check_that_each_request_is_answered_once_or_refused(scenario, run, log):
    answered = np.bincount([int(entry.sent_s) for entry in log], minlength=scenario.seconds)
    assert_array_equal(run.offered, answered + run.refused)
    assert run.histogram.sum() == answered.sum()
    assert len({entry.sent_s for entry in log}) == len(log)
    assert all(1 <= entry.attempts <= scenario.delays.retries + 1 for entry in log)
    in_time = sum(entry.response_ms <= scenario.objective.response_time_ms for entry in log)
    assert run.in_time.sum() == in_time


def test_an_event_loop_that_takes_no_time_reads_each_request_that_was_held_before_the_next():
    """For one second there is no replica. Then each held request finds the last one read."""
    latency_ms = np.linspace(20, 22, 4)
    event_loop = EventLoopCosts(request_ms=0.0, batch_ms=0.1, shares_cpu=False)
    scenario = Scenario(
        Profile("model", "device", latency_ms, event_loop=event_loop),
        ServiceLevelObjective(500.0, 99.0),
        np.full(4, 200),
        start_time=StartTime(0.0),
        seed=3,
        routing=Routing.RANDOM,
        delays=TryDelays(0.5, 0.5, 0.0, retries=5),
        batching=BatchingPolicy.from_control_limit(1, 4),
        settings=BatchingSettings(serve_late=True, max_queue_rows=10),
        replicas=2,
        min_replicas=0,
        max_replicas=10,
    )
    (live, live_log, _), (compiled, compiled_log, _) = run_both(scenario, [2, 2, 0])
    assert compiled_log == live_log
    assert_array_equal(compiled.refused, live.refused)


def test_after_a_drop_of_the_load_both_engines_stop_to_wait_for_company_alike():
    """The rate that batching goes by is a mean over 5 s, unless what arrives contradicts it."""
    rates_per_s = tuple(np.geomspace(60, 2000, 64).tolist())
    policies = tuple(BatchingPolicy.from_control_limit(1 + cell // 4, 17) for cell in range(65))
    scenario = Scenario(
        Profile("model", "device", np.full(17, 0.5)),
        ServiceLevelObjective(500.0, 99.0),
        np.array([2000.0] * 4 + [40.0] * 3),
        within_second="uniform",
        batching=PolicyTable(rates_per_s, policies),
        settings=BatchingSettings(max_age_ms=200.0),
    )
    (_, live_log, _), (_, compiled_log, _) = run_both(scenario, [1])
    assert compiled_log == live_log
    after = [entry.response_ms for entry in live_log if entry.sent_s > 4.5]
    assert len(after) > 80
    # Without the check, the mean says 900/s after 4 s, and each waits for 15 others.
    assert np.median(after) < 50
