import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from autoscaler.simulator.scenario import Failures, Scenario
from autoscaler.simulator.simulation import Simulation
from autoscaler.simulator.standbys import StandbyPool
from autoscaler.simulator.start_time import StartTime
from autoscaler.standbys import STANDBY_PRICE
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import BatchingSettings
from policy.try_delays import TryDelays
from tests.support.autoscaling.fleet_views import Scripted

#: A batch of one takes 400 ms.
SLOW = Profile("slow", "device", np.array([400.0]))


def scenario(counts, **options):
    return Scenario(
        SLOW,
        ServiceLevelObjective(1000.0, 90.0),
        np.array(counts),
        **{
            "batching": BatchingPolicy.from_control_limit(1, 1),
            "within_second": "uniform",
            "delays": TryDelays(0.0, 0.0, 1.0, 5),
            "settings": BatchingSettings(max_queue_rows=100, serve_late=True),
            "start_time": StartTime(10.0),
            "min_replicas": 0,
            **options,
        },
    )


def simulated(given, script):
    autoscaler = Scripted(*script)
    simulation = Simulation(given, autoscaler, log_requests=True)
    return simulation.run(), simulation.request_log(), autoscaler.views


def with_standbys(*script, replicas=1):
    """Simulate 40 s; a replica starts in 20 s, one that stood by in 3."""
    starts = {"start_time": StartTime(20.0), "standby_start_time": StartTime(3.0)}
    run, _, views = simulated(scenario([0] * 40, replicas=replicas, **starts), script)
    return run, views


def test_a_replica_costs_from_its_order_and_serves_after_its_start_time():
    run, _, views = simulated(
        scenario([0] * 20, start_time=StartTime(7.25)), [(0, 1), (5, 2), (15, 2)]
    )
    assert_array_equal(run.ordered, [1] * 5 + [2] * 15)
    assert_array_equal(run.ready, [1] * 12 + [1.75] + [2] * 7)
    assert run.paid_replica_s == 20 + 15
    assert [view.ready for view in views] == [1] * 12 + [2] * 8
    assert [view.reports()[-1].start_time_s for view in views[-1:]] == [7.25]


def test_starting_replicas_are_removed_first_and_cost_until_then():
    run, _, views = simulated(scenario([0] * 12, replicas=2), [(0, 2), (3, 4), (6, 2)])
    assert [view.ready for view in views] == [2] * 12
    assert run.paid_replica_s == 2 * 12 + 2 * 3


def test_a_draining_replica_finishes_its_requests_takes_no_more_and_costs_until_then():
    # About three requests are at each of two replicas; at 1 s one must drain, which takes a while.
    run, log, views = simulated(scenario([6, 0, 4, 0, 0, 0, 0, 0], replicas=2), [(0, 2), (1, 1)])
    assert len(log) == 10
    assert run.refused.sum() == 0
    assert_array_equal(run.ready, [2] + [1] * 7)
    assert len(views[-1].reports()) == 1
    first = [entry for entry in log if entry.sent_s < 1]
    finished_s = np.array([entry.sent_s + 1e-3 * entry.response_ms for entry in first])
    # The drained replica was paid for until the last of its requests was done.
    assert np.isclose(run.paid_replica_s - 8, finished_s).any()


def test_the_requests_of_a_dead_replica_are_retried_and_another_replica_is_ordered():
    run, log, views = simulated(
        scenario([20] + [0] * 19, replicas=2, failures=Failures(times_s=(1.5,))), [(0, 2)]
    )
    assert len(log) == 20
    again = [entry for entry in log if entry.attempts == 2]
    assert len(again) > 2
    # Each was retried at the other replica a millisecond after the death.
    assert all(entry.sent_s + 1e-3 * entry.response_ms > 1.9 for entry in again)
    assert_allclose(run.ready, [2, 1.5] + [1] * 9 + [1.5] + [2] * 8)
    assert_array_equal(run.ordered, 2)
    assert run.paid_replica_s == pytest.approx(2 * 20)
    newest = views[-1].reports()[-1]
    assert (newest.replica_id, newest.start_time_s) == ("replica-2", 10.0)


def test_requests_are_held_until_the_first_replica_is_ready():
    run, log, views = simulated(scenario([5] + [0] * 30, replicas=0), [(0, 0), (1, 1)])
    assert len(log) == 5
    assert_allclose(
        [entry.sent_s + 1e-3 * entry.response_ms for entry in log],
        11 + 0.4 * np.arange(1, 6),
    )
    assert views[4].ongoing == pytest.approx(5)
    assert run.in_time.sum() == 0


def test_held_requests_are_refused_if_no_replica_ever_comes():
    run, log, _ = simulated(scenario([5, 2], replicas=0), [(0, 0)])
    assert log == []
    assert_array_equal(run.refused, [5, 2])
    assert run.paid_replica_s == 0


def test_values_out_of_range_are_rejected():
    for make, values in ((StartTime, (-1.0,)), (StartTime, (1.0, np.inf))):
        with pytest.raises(InvalidInputError, match=r"must be (at least 0|finite), not"):
            make(*values)


def test_a_standby_serves_after_its_own_start_time_and_costs_its_price_until_then():
    """Ordered at 1 s, up at 21 s; wanted at 30 s, serving at 33 s; paid in full from 30 s."""
    done, views = with_standbys((0, 1, 0), (1, 1, 1), (30, 2, 0))
    assert done.ready.tolist() == [1.0] * 33 + [2.0] * 7
    assert_allclose(done.paid_replica_s, 40 + STANDBY_PRICE * 29 + 10)
    assert [view.standbys for view in views] == [0] + [1] * 29 + [0] * 10


def test_a_standby_that_still_starts_is_waited_for():
    done, _ = with_standbys((0, 1, 0), (1, 1, 1), (11, 2, 0))
    assert np.flatnonzero(done.ready > 1)[0] == 24  # up at 21 s, serving 3 s later
    assert_allclose(done.paid_replica_s, 40 + STANDBY_PRICE * 10 + 29)


def test_a_replica_that_goes_becomes_a_standby_if_one_is_missing():
    done, views = with_standbys((0, 2, 0), (10, 1, 1), (20, 2, 0), replicas=2)
    assert [view.standbys for view in views[9:20]] == [0] + [1] * 10
    assert done.ready.tolist() == [2.0] * 10 + [1.0] * 13 + [2.0] * 17
    assert_allclose(done.paid_replica_s, 40 + 10 + STANDBY_PRICE * 10 + 20)


def test_a_start_that_fails_is_tried_again():
    """With a half of the starts failing, a standby takes two cold starts on average."""
    pool = StandbyPool(StartTime(0.0), StartTime(10.0), 0.5, np.random.default_rng(1))
    pool.scale_to(0.0, 2000)
    waits_s = [pool.take(0.0) for _ in range(2000)]
    assert np.mean(waits_s) == pytest.approx(20.0, rel=0.05)
    assert waits_s == sorted(waits_s)  # the first to be up is taken
    assert pool.take(0.0) is None


def test_a_percentile_of_the_start_time():
    random = np.random.default_rng(3)
    start = StartTime(60.0, 0.3)
    drawn = [start.draw_s(random) for _ in range(20_000)]
    assert start.percentile_s(90) == pytest.approx(np.percentile(drawn, 90), rel=0.01)
    assert StartTime(60.0).percentile_s(90) == 60.0
