"""The search for the cheapest division, against trying everything."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.pipelines.planning.divisions import cheapest_division
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective

SLA = ServiceLevelObjective(100.0, 99.0)
#: Stages of made-up pipelines: the work of each, shared by its workers.
WORKS = st.lists(st.floats(1, 120), min_size=1, max_size=3)


def percentile_of(works):
    def percentile_ms(workers):
        return 20.0 + sum(work / count for work, count in zip(works, workers, strict=True))

    return percentile_ms


@settings(max_examples=40)
@given(WORKS, st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_none_that_is_cheaper_keeps_the_sla(works, costs):
    costs = costs[: len(works)]
    percentile_ms = percentile_of(works)
    least, most = [1] * len(works), [np.inf] * len(works)
    found = cheapest_division(percentile_ms, SLA, least, most, costs, 10_000)
    assert percentile_ms(found.workers) <= SLA.response_time_ms
    cheapest = min(
        np.dot(workers, costs)
        for workers in itertools.product(range(1, 13), repeat=len(works))
        if percentile_ms(workers) <= SLA.response_time_ms
    )
    assert np.dot(found.workers, costs) == cheapest
    assert found.is_cheapest


def test_limits_of_stages_hold():
    percentile_ms = percentile_of([100.0, 100.0])
    free = cheapest_division(percentile_ms, SLA, [1, 1], [np.inf] * 2, [1, 1], 1000)
    limited = cheapest_division(percentile_ms, SLA, [1, 1], [np.inf, 2], [1, 1], 1000)
    assert sum(free.workers) == 6
    assert limited.workers == (4, 2)
    with pytest.raises(InfeasibleError, match="no number of workers keeps 99% of requests"):
        cheapest_division(percentile_ms, SLA, [1, 1], [np.inf, 1], [1, 1], 1000)


def test_a_search_that_ends_early_has_a_division_all_the_same():
    percentile_ms = percentile_of([71.0, 47.0, 99.0, 58.0])
    four = ([1] * 4, [np.inf] * 4, [3, 5, 2, 7])
    early = cheapest_division(percentile_ms, SLA, *four, 10)
    late = cheapest_division(percentile_ms, SLA, *four, 100_000)
    assert not early.is_cheapest
    assert late.is_cheapest
    assert percentile_ms(early.workers) <= SLA.response_time_ms
    assert np.dot(late.workers, four[2]) <= np.dot(early.workers, four[2])
    assert early.tried < late.tried
