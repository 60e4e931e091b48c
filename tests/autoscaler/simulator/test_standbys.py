import numpy as np
import pytest
from numpy.testing import assert_allclose

from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.simulator.standbys import StandbyPool
from autoscaler.simulator.start_time import StartTime
from autoscaler.standbys import STANDBY_PRICE
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from tests.support.autoscaling.fleet_views import Scripted

START_TIME = StartTime(3.0)


def run(seconds, *script, replicas=1, standby_start_time=START_TIME):
    scripted = Scripted(*script)
    given = Scenario(
        Profile("model", "device", np.array([10.0])),
        ServiceLevelObjective(100, 99),
        np.zeros(seconds),
        batching=BatchingPolicy.from_control_limit(1, 1),
        start_time=StartTime(20.0),
        replicas=replicas,
        standby_start_time=standby_start_time,
    )
    return simulate(given, scripted), scripted.views


def test_a_standby_serves_after_its_own_start_time_and_costs_its_price_until_then():
    """Ordered at 1 s, up at 21 s; wanted at 30 s, serving at 33 s; paid in full from 30 s."""
    done, views = run(40, (0, 1, 0), (1, 1, 1), (30, 2, 0))
    assert done.ready.tolist() == [1.0] * 33 + [2.0] * 7
    assert_allclose(done.paid_replica_s, 40 + STANDBY_PRICE * 29 + 10)
    assert [view.standbys for view in views] == [0] + [1] * 29 + [0] * 10


def test_a_standby_that_still_starts_is_waited_for():
    done, _ = run(40, (0, 1, 0), (1, 1, 1), (11, 2, 0))
    assert np.flatnonzero(done.ready > 1)[0] == 24  # up at 21 s, serving 3 s later
    assert_allclose(done.paid_replica_s, 40 + STANDBY_PRICE * 10 + 29)


def test_a_replica_that_goes_becomes_a_standby_if_one_is_missing():
    done, views = run(40, (0, 2, 0), (10, 1, 1), (20, 2, 0), replicas=2)
    assert [view.standbys for view in views[9:20]] == [0] + [1] * 10
    assert done.ready.tolist() == [2.0] * 10 + [1.0] * 13 + [2.0] * 17
    assert_allclose(done.paid_replica_s, 40 + 10 + STANDBY_PRICE * 10 + 20)


def test_a_start_that_fails_is_tried_again():
    """With a half of the starts failing, a standby takes two cold starts on average."""
    pool = StandbyPool(StartTime(0.0), StartTime(10.0), 0.5, np.random.default_rng(1))
    pool.scale_to(0.0, 2000)
    waits_s = [pool.take(0.0) for _ in range(2000)]
    assert np.mean(waits_s) == pytest.approx(20.0, rel=0.05)
    assert waits_s == sorted(waits_s)
    assert pool.take(0.0) is None


def test_the_first_to_be_up_is_taken_and_the_last_let_go():
    pool = StandbyPool(StartTime(1.0), StartTime(10.0), 0.0, np.random.default_rng(0))
    pool.put(0.0, 5.0)
    pool.put(0.0, 2.0)
    pool.scale_to(4.0, 1)
    assert pool.take(4.0) == 1.0
    assert pool.finish(9.0) == STANDBY_PRICE * (4 + 4)


def test_a_percentile_of_the_start_time():
    random = np.random.default_rng(3)
    start = StartTime(60.0, 0.3)
    drawn = [start.draw_s(random) for _ in range(20_000)]
    assert start.percentile_s(90) == pytest.approx(np.percentile(drawn, 90), rel=0.01)
    assert StartTime(60.0).percentile_s(90) == 60.0
