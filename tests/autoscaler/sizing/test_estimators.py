import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.sizing.estimators import FullBatchEstimator, Prediction, least_replicas
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.try_delays import TryDelays

# GoogLeNet on a Tesla P4: a full batch of 32 takes 10.8152 ms.
P4 = FullBatchEstimator(32 / 10.8152e-3, 10.8152, TryDelays(1.0, 1.0, 2.0))

rates = st.just(0.0) | st.floats(0, 50_000)
response_times = st.floats(12, 500)
percentiles = st.floats(50, 99.99)


@pytest.mark.parametrize(("level", "met"), [(0.999, True), (0.99899, False)])
def test_a_level_that_is_just_the_slas_meets_it(level, met):
    assert Prediction(1, level, 10.0).meets(ServiceLevelObjective(100, 99.9)) is met


@given(rates, response_times, percentiles, st.integers(1, 60))
def test_one_more_replica_never_hurts(rate, response_time_ms, percentile, replicas):
    objective = ServiceLevelObjective(response_time_ms, percentile)
    fewer, more = (P4.predict(rate, n, objective) for n in (replicas, replicas + 1))
    assert fewer.service_level <= more.service_level
    assert fewer.percentile_ms >= more.percentile_ms


@given(st.floats(1, 20_000), response_times, percentiles, st.integers(1, 20))
def test_percentile_and_service_level_agree(rate, response_time_ms, percentile, replicas):
    objective = ServiceLevelObjective(response_time_ms, percentile)
    prediction = P4.predict(rate, replicas, objective)
    if math.isinf(prediction.percentile_ms):
        assert prediction.service_level == 0
        return
    reached = P4.predict(
        rate, replicas, ServiceLevelObjective(prediction.percentile_ms, percentile)
    )
    assert reached.service_level >= percentile / 100 - 1e-9
    assert prediction.meets(objective) == (
        prediction.percentile_ms <= response_time_ms * (1 + 1e-9)
    )


def test_with_a_limit_of_retries_the_percentile_can_be_infinite():
    estimator = FullBatchEstimator(100.0, 10.0, TryDelays(retries=2))
    objective = ServiceLevelObjective(1000, 99)
    prediction = estimator.predict(80.0, 1, objective)
    assert prediction == Prediction(1, pytest.approx(1 - 0.8**3), math.inf)


@given(rates, response_times, percentiles)
def test_no_smaller_number_meets_the_sla(rate, response_time_ms, percentile):
    objective = ServiceLevelObjective(response_time_ms, percentile)
    found = least_replicas(P4, rate, objective, max_replicas=1_000_000)
    assert found.meets(objective)
    assert rate < found.replicas * P4.capacity_per_s
    fewer = range(max(1, found.replicas - 200), found.replicas)
    assert not any(P4.predict(rate, n, objective).meets(objective) for n in fewer)


def test_an_sla_that_no_number_meets_says_what_would_help():
    with pytest.raises(InfeasibleError, match=r"allow 11\.82 ms or more") as error:
        least_replicas(P4, 1.0, ServiceLevelObjective(11.8, 99))
    assert "\n" not in str(error.value)
    assert least_replicas(P4, 1.0, ServiceLevelObjective(11.8152, 99)).replicas == 1


def test_an_sla_that_the_bounds_rule_out_says_what_would_help():
    with pytest.raises(InfeasibleError, match="allow more replicas"):
        least_replicas(P4, 10_000, ServiceLevelObjective(50, 99), max_replicas=3)


class _Peaked:
    """An estimator that is not monotone: only 7 to 9 replicas meet the SLA."""

    capacity_per_s = 10.0
    monotone = False

    def least_to_consider(self, arrival_rate_per_s, objective):
        return int(arrival_rate_per_s / self.capacity_per_s) + 1

    def predict(self, arrival_rate_per_s, replicas, objective):
        return Prediction(replicas, 1.0 if 7 <= replicas <= 9 else 0.0, 1.0)

    def check_feasible(self, objective):
        pass


def test_an_estimator_that_is_not_monotone_is_searched_one_by_one():
    objective = ServiceLevelObjective(50, 99)
    assert least_replicas(_Peaked(), 15.0, objective).replicas == 7
    assert least_replicas(_Peaked(), 75.0, objective).replicas == 8
    with pytest.raises(InfeasibleError):
        least_replicas(_Peaked(), 95.0, objective)


@pytest.mark.parametrize(
    "call",
    [
        lambda: least_replicas(P4, math.nan, ServiceLevelObjective(50, 99)),
        lambda: least_replicas(P4, 1, ServiceLevelObjective(50, 99), 0),
    ],
)
def test_values_out_of_range_are_refused(call):
    with pytest.raises(InvalidInputError):
        call()
