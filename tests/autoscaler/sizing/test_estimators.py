import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.sizing.estimators import FullBatchEstimator, Prediction
from autoscaler.sizing.rand import response_time_cdf
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.try_delays import TryDelays

# GoogLeNet on a Tesla P4: a full batch of 32 takes 10.8152 ms.
P4 = FullBatchEstimator(32 / 10.8152e-3, 10.8152, TryDelays(1.0, 1.0, 2.0))

rates = st.floats(0, 50_000)
response_times = st.floats(12, 500)
percentiles = st.floats(50, 99.99)


@pytest.mark.parametrize(("level", "met"), [(0.999, True), (0.99899, False)])
def test_a_level_that_is_just_the_slas_meets_it(level, met):
    assert Prediction(1, level, 10.0).meets(ServiceLevelObjective(100, 99.9)) is met


def test_prediction_is_theorem_2():
    objective = ServiceLevelObjective(100, 99)
    for replicas in (4, 5, 9):
        expected = response_time_cdf(100, 10_000, replicas, 32 / 10.8152e-3, 10.8152, 1, 1, 2)
        assert P4.predict(10_000, replicas, objective).service_level == expected


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


@pytest.mark.parametrize(
    "call",
    [
        lambda: FullBatchEstimator(0.0, 1.0),
        lambda: FullBatchEstimator(1.0, math.inf),
    ],
)
def test_values_out_of_range_are_refused(call):
    with pytest.raises(InvalidInputError):
        call()
