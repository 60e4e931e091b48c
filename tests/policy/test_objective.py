import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, Weights


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (Weights, (math.nan, 0), "latency weight: must be above 0, not nan"),
        (Weights, (0, 0), "latency weight: must be above 0, not 0"),
        (Weights, (1, -1), "energy weight: must be at least 0, not -1"),
        (ServiceLevelObjective, (0, 99), "response time in ms: must be above 0, not 0"),
        (ServiceLevelObjective, (math.inf, 99), "response time in ms: must be finite, not inf"),
        (ServiceLevelObjective, (10, 0), "percentile: must be between 0 and 100, not 0"),
        (ServiceLevelObjective, (10, math.nan), "percentile: must be between 0 and 100, not nan"),
        (ServiceLevelObjective.parse, ("100@99",), "must be like 50ms@95 or p95=50ms, not '100@"),
        (ServiceLevelObjective.parse, ("99=5ms",), "must be like"),
        (ServiceLevelObjective.parse, ("5ms@0.99",), "percentile: is in percent; write 99 for 99%"),
    ],
)
def test_values_out_of_range_are_refused(kind, values, message):
    with pytest.raises(InvalidInputError, match=message):
        kind(*values)


def test_delays_leave_the_rest_of_the_response_time_but_never_nothing():
    sla = ServiceLevelObjective(100.0, 99.0)
    assert sla.after(0.5) == ServiceLevelObjective(99.5, 99.0)
    assert 0 < sla.after(100.0).response_time_ms < 0.01


def test_a_response_time_that_equals_the_limit_is_not_late():
    sla = ServiceLevelObjective(100.0, 99.0)
    assert not sla.is_late(100.0)
    assert sla.is_late(math.nextafter(100.0, math.inf))


times = st.floats(0.001, 1e6).map(lambda time: round(time, 3))
percentiles = st.floats(1.001, 99.999).map(lambda percentile: round(percentile, 3))


@given(times, percentiles)
def test_an_sla_in_one_word_has_two_forms_and_two_units(time, percentile):
    sla = ServiceLevelObjective(time, percentile)
    assert ServiceLevelObjective.parse(f"{time:.3f}ms@{percentile}") == sla
    assert ServiceLevelObjective.parse(f"p{percentile}={time:.3f}ms") == sla
    in_s = ServiceLevelObjective.parse(f"{time:.3f}s@{percentile}%")
    assert in_s.response_time_ms == pytest.approx(1000 * time)


@pytest.mark.parametrize("percentile", [0.1, 95, 99.9, 99.999])
def test_the_least_level_counts_requests_exactly(percentile):
    sla = ServiceLevelObjective(100.0, percentile)
    requests = 100_000_000
    in_time = round(percentile * requests / 100)
    assert in_time / requests >= sla.least_level
    assert (in_time - 1) / requests < sla.least_level
