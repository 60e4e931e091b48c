from pathlib import Path

import numpy as np
import pytest

from autoscaler.simulator.autoscalers.mark import (
    LEVEL_WEIGHT,
    MAX_STEPS,
    STEP_S,
    TREND_WEIGHT,
    MarkProportional,
    replica_rate_per_s,
)
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from tests.support.fleet_views import fleet_sizes, view

P4 = Profile.load(Path(__file__).parents[4] / "configs" / "profiles" / "googlenet-p4.json")
SLA = ServiceLevelObjective(50, 99)


def forecast(offered, *, start_time_s=0.0, observed_start_times_s=()):
    policy = MarkProportional(P4, SLA, start_time_s=start_time_s, headroom=1)
    for second, requests in enumerate(offered, start=1):
        policy.replicas(view(second, offered=requests, start_times_s=observed_start_times_s))
    return policy.forecast_per_s


@pytest.mark.parametrize("steps", [1, 2, 3 * MAX_STEPS])
def test_forecasts_by_holts_recursion_over_the_ten_second_means(steps):
    means = 1000.0 + 50 * np.random.default_rng(7).standard_normal(steps)
    level, trend = means[0], 0.0
    for value in means[1:]:
        before = level
        level += trend + LEVEL_WEIGHT * (value - level - trend)
        trend += TREND_WEIGHT * (level - before - trend)
    predicted = forecast(np.repeat(means, STEP_S), start_time_s=60)
    assert predicted == pytest.approx(level + 6 * trend, rel=1e-9)


def test_follows_a_line_up_and_down_to_zero():
    rising = [10.0 + 2 * step for step in range(300)]
    falling = [600.0 - 2 * step for step in range(300)]
    ahead = forecast(np.repeat(rising, STEP_S), start_time_s=60)
    assert ahead == pytest.approx(10 + 2 * 305, rel=1e-3)
    assert forecast(np.repeat(falling, STEP_S), start_time_s=60) == 0


def test_two_batches_in_a_row_are_in_time():
    assert replica_rate_per_s(P4, SLA) == pytest.approx(P4.capacity_per_s)
    # 2 (1.052 + 0.3051 b) <= 10: b = 12
    tight = replica_rate_per_s(P4, ServiceLevelObjective(10, 99))
    assert tight == pytest.approx(12e3 / (1.052 + 12 * 0.3051))
    with pytest.raises(InfeasibleError, match="two batches of one"):
        replica_rate_per_s(P4, ServiceLevelObjective(2.5, 99))


def test_a_constant_load_takes_its_share_of_replicas_and_the_headroom():
    policy = MarkProportional(P4, SLA, start_time_s=60, headroom=1.5)
    assert set(fleet_sizes(policy, 100 * [10 * P4.capacity_per_s])) == {15}


def test_looks_ahead_by_the_start_times_that_it_has_observed():
    ramp = [100.0 * second for second in range(1, 601)]
    slow = forecast(ramp, observed_start_times_s=(300.0,))
    fast = forecast(ramp, observed_start_times_s=(60.0,))
    assert slow - fast == pytest.approx(240 * 100, rel=0.01)
    assert forecast(ramp) == pytest.approx(ramp[-1], rel=0.02)
