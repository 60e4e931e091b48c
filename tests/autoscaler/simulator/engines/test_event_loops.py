import numpy as np
import pytest
from numpy.testing import assert_allclose

from autoscaler.simulator.engines.compiled import CompiledEngine
from autoscaler.simulator.engines.interface import FleetCounters
from autoscaler.simulator.scenario import Scenario
from policy.batching_policy import BatchingPolicy
from policy.event_loop import EventLoopCosts
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.try_delays import TryDelays


def engine_with(request_ms, batch_ms, sent_ms):
    """Return an engine that has served requests sent at these times, and its counters.

    Its event loop takes two times in ms, for a request and for a batch.
    """
    event_loop = EventLoopCosts(request_ms, batch_ms, shares_cpu=False)
    scenario = Scenario(
        Profile("model", "device", np.array([3.0, 3.0]), event_loop=event_loop),
        ServiceLevelObjective(1000.0, 99.0),
        np.ones(1),
        batching=BatchingPolicy.from_control_limit(1, 2),
        delays=TryDelays(0.0, 0.0, 0.0, 0),
    )
    counters = FleetCounters.zeros(1)
    engine = CompiledEngine(scenario, counters, seed=1, log_requests=True)
    engine.add(0, 0.0)
    engine.route_to([0], 0.0)
    engine.offer(1e-3 * np.array(sent_ms))
    engine.advance(1.0)
    return engine, counters


def test_requests_and_ended_batches_pass_the_event_loop_in_order():
    engine, _ = engine_with(2.0, 1.0, [0.0, 1.0, 5.5, 20.0])
    # read:   0-2, 2-4, 6-8, 20-22; the third waits for the answer to the first
    # device: 2-5 (1), 5-8 (2), 8-11 (3), 22-25 (4)
    # answer: 5-6, 8-9, 11-12, 25-26
    log = engine.request_log()
    assert_allclose([request.response_ms for request in log], [6.0, 8.0, 6.5, 6.0])
    assert [request.batch_size for request in log] == [1, 1, 1, 1]
    assert_allclose(engine.work(), [4, 12e-3, 12e-3])


def test_a_draining_replica_answers_what_its_event_loop_has():
    engine, _ = engine_with(50.0, 10.0, [990.0, 991.0])
    engine.route_to([], 1.0)
    engine.drain(0, 1.0)
    assert engine.drained_at_s(0) == np.inf
    engine.advance(2.0)
    # Read until 1.04 and 1.09, computed 1.04-1.043, answered 1.09-1.1 and, after that, 1.1-1.11.
    assert engine.drained_at_s(0) == pytest.approx(1.11)
    assert_allclose([request.response_ms for request in engine.request_log()], [110.0, 119.0])


def test_a_dead_replica_loses_what_its_event_loop_has():
    engine, counters = engine_with(50.0, 10.0, [970.0, 971.0, 972.0])
    engine.kill(0, 1.0)
    engine.finish(1.0)
    assert counters.refused.sum() == 3
    assert not engine.request_log()
    assert engine.take_ongoing_s() == pytest.approx(0.03 + 0.029 + 0.028)
