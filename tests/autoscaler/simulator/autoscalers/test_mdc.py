import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.simulator.autoscalers.mdc import MdcSizing, mmc_wait_percentile_s
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from tests.support.autoscaling.fleet_views import fleet_sizes
from tests.support.profiles import GOOGLENET_P4 as P4

SLA = ServiceLevelObjective(50, 99)


def test_the_wait_is_that_of_mmc():
    # P(W > t) = rho exp(-(1 - rho) t / s)
    assert mmc_wait_percentile_s(0.5, 1.0, 1, 99) == pytest.approx(math.log(0.5 / 0.01) / 0.5)
    assert mmc_wait_percentile_s(0.005, 1.0, 1, 99) == 0
    assert mmc_wait_percentile_s(1.0, 1.0, 1, 99) == math.inf
    # C(2, 1) = 1/3 (any table of Erlang's C), so P(W > t) = exp(-t)/3
    assert mmc_wait_percentile_s(1.0, 1.0, 2, 90) == pytest.approx(math.log(1 / 3 / 0.1))


@pytest.mark.parametrize("load", [0.7, 0.95])
def test_half_the_wait_of_mmc_is_a_little_above_that_of_md1(load):
    one = Profile("one", "server", [10.0])
    exact_ms = evaluate(one, BatchingPolicy((0, 1)), 100 * load).response_percentile_ms(99)
    half_ms = 10 + 1e3 * mmc_wait_percentile_s(100 * load, 0.01, 1, 99) / 2
    assert exact_ms <= half_ms <= 1.09 * exact_ms


@given(rate=st.floats(1, 60_000))
def test_the_required_replicas_are_the_fewest_that_meet_the_sla(rate):
    sizing = MdcSizing(P4, SLA)
    required = sizing.required_replicas(rate)
    assert sizing.percentile_ms(rate, required) <= SLA.response_time_ms
    assert required == 1 or sizing.percentile_ms(rate, required - 1) > SLA.response_time_ms


def test_sizes_for_the_highest_ten_second_mean_of_the_look_back():
    sizing = MdcSizing(P4, SLA, look_back_s=60)
    load = 30 * [2000.0] + 10 * [20_000.0] + 100 * [2000.0]
    sizes = fleet_sizes(sizing, load)
    at_peak = MdcSizing(P4, SLA).required_replicas(20_000)
    assert max(sizes) == sizes[39] == at_peak
    assert sizes[39 + 59] == at_peak
    assert sizes[-1] == sizes[20] == MdcSizing(P4, SLA).required_replicas(2000)


def test_an_sla_shorter_than_a_full_batch_is_infeasible():
    with pytest.raises(InfeasibleError, match="full batch takes"):
        MdcSizing(P4, ServiceLevelObjective(10, 99))
