import numpy as np
import pytest

from autoscaler.simulator.autoscalers.latency_thresholds import LatencyThresholds
from autoscaler.simulator.engines.counters import bin_edges_ms
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from tests.support.fleet_views import view

SLA = ServiceLevelObjective(100, 99)


def answers(*times_ms: float) -> np.ndarray:
    return np.histogram(times_ms, bin_edges_ms())[0].astype(float)


def after_interval(histogram, refused=0.0, ready=10, ordered=None, **settings) -> int:
    policy = LatencyThresholds(SLA, **settings)
    return policy.replicas(
        view(30, ready=ready, ordered=ordered, histogram=histogram, refused=refused)
    )


def test_a_slow_percentile_adds_one_and_a_fast_one_removes_one() -> None:
    assert after_interval(answers(*[50.0] * 8, 150.0, 150.0)) == 11
    assert after_interval(answers(*[50.0] * 99, 150.0)) == 9
    assert after_interval(answers(*[90.0] * 10)) == 10
    assert after_interval(answers()) == 9


def test_a_refused_request_is_slower_than_any_answer() -> None:
    assert after_interval(answers(*[50.0] * 8), refused=2) == 11


def test_only_the_answers_of_the_interval_count() -> None:
    policy = LatencyThresholds(SLA)
    slow = answers(*[500.0] * 100)
    assert policy.replicas(view(30, ready=10, histogram=slow)) == 11
    assert policy.replicas(view(60, ready=11, histogram=slow + answers(*[10.0] * 5))) == 10


def test_it_decides_once_in_an_interval_and_not_while_replicas_start() -> None:
    policy = LatencyThresholds(SLA)
    slow = answers(*[500.0] * 9)
    assert policy.replicas(view(29, ready=10, histogram=slow)) == 10
    assert after_interval(slow, ready=9, ordered=12) == 12


def test_it_adds_a_share_of_the_fleet_if_told_to() -> None:
    assert after_interval(answers(500.0), step_share=0.25) == 13


def test_thresholds_out_of_range_are_rejected() -> None:
    with pytest.raises(InvalidInputError):
        LatencyThresholds(SLA, 0.0)
    with pytest.raises(InvalidInputError):
        LatencyThresholds(SLA, lower_share=1.0)
