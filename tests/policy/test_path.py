"""What the balancer costs: laws, the profile's file, and the load that keeps the SLA."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.front import FrontCosts
from policy.load_lateness import solve_load_lateness_curve
from policy.objective import ServiceLevelObjective
from policy.path import PathCosts
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.response_time.way import BalancerLoad, ClientResponseTimes
from policy.table_solving import solve_table

ONE_BY_ONE = BatchingPolicy.from_control_limit(1, 1)
FAST = Profile(
    "mlp", "cpu", 0.02 + 0.003 * np.arange(1, 9), front=FrontCosts(0.045, 0.05, shares_cpu=True)
)
SLA = ServiceLevelObjective(2.0, 99.0)


@given(
    balancer_ms=st.floats(1e-4, 10),
    replicas=st.floats(0.5, 100),
    share=st.floats(0.01, 0.99),
)
def test_the_balancer_is_busy_in_proportion_to_the_load(
    balancer_ms: float, replicas: float, share: float
) -> None:
    path = PathCosts(balancer_ms, replicas)
    assert path.utilization(share * path.capacity_per_s) == pytest.approx(share)
    with pytest.raises(InfeasibleError, match="the balancer can pass"):
        path.utilization(1.01 * path.capacity_per_s)


@given(
    balancer_ms=st.floats(1e-4, 10),
    utilization=st.floats(0.01, 0.99),
    rate_per_s=st.floats(1, 1e5),
)
def test_costs_that_are_read_off_a_utilization_give_it_again(
    balancer_ms: float, utilization: float, rate_per_s: float
) -> None:
    path = PathCosts.from_utilization(balancer_ms, utilization, rate_per_s)
    assert path.balancer_ms == balancer_ms
    assert path.utilization(rate_per_s) == pytest.approx(utilization)


def test_a_balancer_that_takes_no_time_keeps_up_with_everything() -> None:
    assert PathCosts(0.0).capacity_per_s == math.inf
    assert PathCosts(0.0).utilization(1e9) == 0.0


@pytest.mark.parametrize("path", [None, PathCosts(0.05), PathCosts(0.05, 4.0)])
def test_a_profile_keeps_its_path(path: PathCosts | None) -> None:
    profile = replace(FAST, path=path)
    content = profile.to_dict()
    assert ("path" in content) == (path is not None)
    assert Profile.from_dict(content).path == path
    assert profile.serial().path == path
    assert profile.up_to(4).path == path


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        {"replicas": 2},
        {"balancer_ms": 0.1, "more": 1},
        {"balancer_ms": "0.1"},
        {"balancer_ms": True},
        {"balancer_ms": -0.1},
        {"balancer_ms": math.inf},
        {"balancer_ms": 0.1, "replicas": 0},
    ],
)
def test_a_path_of_another_form_is_refused(content: object) -> None:
    with pytest.raises(InvalidInputError, match=r"^path: "):
        PathCosts.from_dict(content)


@pytest.mark.parametrize("shares_cpu", [True, False])
def test_response_times_are_those_of_the_replica_and_the_way(shares_cpu: bool) -> None:
    profile = replace(FAST, front=FrontCosts(0.045, 0.05, shares_cpu=shares_cpu))
    policy, rate_per_s, path = BatchingPolicy.from_control_limit(2, 8), 4000.0, PathCosts(0.05, 2.0)
    replica = evaluate(profile, policy, rate_per_s)
    client = evaluate(replace(profile, path=path), policy, rate_per_s)
    way_ms = BalancerLoad(0.05, 0.4).way_ms(replica.mean_batch_size)
    expected = ClientResponseTimes(replica.response_times, way_ms)
    for percentile in (50, 99):
        expected_ms = expected.quantile(percentile / 100)
        assert client.response_percentile_ms(percentile) == pytest.approx(expected_ms)
    assert client.mean_response_ms == pytest.approx(replica.mean_response_ms + way_ms.mean())
    assert client.mean_batch_size == replica.mean_batch_size


def test_a_balancer_that_cannot_keep_up_is_told() -> None:
    profile = Profile("m", "d", np.array([0.1]), path=PathCosts(1.0))
    with pytest.raises(InfeasibleError, match="the balancer can pass"):
        evaluate(profile, ONE_BY_ONE, 1000.0)
    with pytest.raises(InfeasibleError, match="the balancer can pass"):
        profile.arrivals_per_ms(1000.0)


def test_the_load_that_keeps_the_sla_is_that_of_the_clients() -> None:
    """A costlier or busier balancer leaves less, and at that load clients are just in time."""
    rates = []
    for path in (None, PathCosts(0.0), PathCosts(0.03), PathCosts(0.06), PathCosts(0.06, 2.0)):
        profile = replace(FAST, path=path)
        curve = solve_load_lateness_curve(profile, SLA, 128)
        rates.append(curve.sla_rate_per_s)
        assert curve.late_share(curve.sla_rate_per_s) <= 0.01 + 1e-6
        policy = BatchingPolicy.from_control_limit(1, curve.batch_size_limit or 8)
        at_rate = evaluate(profile, policy, curve.sla_rate_per_s, waiting_room=128)
        assert at_rate.response_percentile_ms(99) <= SLA.response_time_ms * (1 + 1e-3)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(rates[1])
    assert rates[-1] < 0.6 * rates[0]


def test_a_balancer_at_its_end_limits_the_load() -> None:
    path = PathCosts(0.05, 10.0)
    curve = solve_load_lateness_curve(replace(FAST, path=path), SLA, 128)
    assert 0.9 * path.capacity_per_s < curve.sla_rate_per_s < path.capacity_per_s
    assert curve.late_share(1.2 * curve.sla_rate_per_s) == 1.0


def test_a_table_is_solved_for_the_replica_whatever_the_path() -> None:
    profile = Profile("m", "d", np.array([1.0, 1.5]), np.array([10.0, 12.0]))
    objective, rates = ServiceLevelObjective(6.0, 99.0), (200.0, 600.0)
    table = solve_table(profile, objective, rates)
    assert solve_table(replace(profile, path=PathCosts(0.5, 2.0)), objective, rates) == table
