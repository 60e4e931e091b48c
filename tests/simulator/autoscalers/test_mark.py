import numpy as np
import pytest

from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.autoscalers.mark import HoltForecast, MarkProportional, replica_rate_per_s
from tests.support.fleet_views import follow, view

SIZES = np.arange(1, 33)
P4 = Profile("googlenet", "tesla-p4", 1.052 + 0.3051 * SIZES)
SLA = ServiceLevelObjective(50, 99)


def test_holts_method_by_hand() -> None:
    holt = HoltForecast(0.5, 0.5)
    for value in (10, 14, 20):
        holt.add(value)
    # levels 10, 12, 16.5; trends 0, 1, 2.75
    assert holt.ahead(0) == pytest.approx(16.5)
    assert holt.ahead(2) == pytest.approx(22.0)


def test_a_line_is_followed_and_a_fall_ends_at_zero() -> None:
    rising, falling = HoltForecast(), HoltForecast()
    for step in range(300):
        rising.add(10 + 2 * step)
        falling.add(600 - 2 * step)
    assert rising.ahead(6) == pytest.approx(10 + 2 * 305, rel=1e-3)
    assert falling.ahead(6) == 0


def test_two_batches_in_a_row_are_in_time() -> None:
    assert replica_rate_per_s(P4, SLA) == pytest.approx(P4.capacity_per_s)
    # 2 (1.052 + 0.3051 b) <= 10: b = 12
    tight = replica_rate_per_s(P4, ServiceLevelObjective(10, 99))
    assert tight == pytest.approx(12e3 / (1.052 + 12 * 0.3051))
    with pytest.raises(InfeasibleError, match="two batches of one"):
        replica_rate_per_s(P4, ServiceLevelObjective(2.5, 99))


def test_a_constant_load_takes_its_share_and_the_headroom() -> None:
    policy = MarkProportional(P4, SLA, start_time_s=60, headroom=1.5)
    sizes = follow(policy, 100 * [10 * P4.capacity_per_s])
    assert set(sizes) == {15}


def test_orders_for_the_time_that_replicas_have_taken_to_start() -> None:
    ramp = [100.0 * second for second in range(1, 601)]

    def at_end(seen: tuple[float, ...]) -> float:
        policy = MarkProportional(P4, SLA, start_time_s=0, headroom=1)
        for second, offered in enumerate(ramp, start=1):
            policy.replicas(view(second, offered=offered, start_times_s=seen))
        return policy.forecast_per_s

    assert at_end((300.0,)) - at_end((60.0,)) == pytest.approx(240 * 100, rel=0.01)
    assert at_end(()) == pytest.approx(ramp[-1], rel=0.02)
