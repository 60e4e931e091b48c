import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.simulator.autoscalers.hpa import HpaSettings, KubernetesHpa
from tests.support.autoscaling.fleet_views import fleet_sizes, view


def test_a_steady_rate_needs_the_rate_over_the_target():
    assert fleet_sizes(KubernetesHpa(HpaSettings(100.0)), [720.0] * 200)[-1] == 8


@pytest.mark.parametrize(
    ("offered", "ready", "expected"),
    [
        (1090.0, 10, 10),  # within the tolerance
        (1110.0, 10, 12),
        *((1e6, ready, expected) for ready, expected in ((1, 5), (3, 7), (8, 16))),
    ],
)
def test_one_step_doubles_or_adds_four_at_most(offered, ready, expected):
    hpa = KubernetesHpa(HpaSettings(100.0))
    assert hpa.replicas(view(1, offered=offered, ready=ready)) == expected


def test_it_decides_once_in_a_sync_period():
    sizes = fleet_sizes(KubernetesHpa(HpaSettings(1.0)), [1e6] * 61)
    changes = [second for second in range(1, 61) if sizes[second] != sizes[second - 1]]
    assert changes == [15, 30, 45, 60]


@given(st.lists(st.integers(0, 20), min_size=30, max_size=120), st.sampled_from([0.0, 30.0, 90.0]))
def test_it_scales_in_to_the_highest_number_wanted_within_the_stabilization(loads, stabilization_s):
    settings = HpaSettings(
        100.0, stabilization_s=stabilization_s, sync_period_s=1.0, tolerance=0.0, rate_window_s=1
    )
    sizes = fleet_sizes(KubernetesHpa(settings), [100.0 * load for load in loads])
    for second, size in enumerate(sizes):
        recent = loads[max(0, second - math.floor(stabilization_s)) : second + 1]
        before = sizes[second - 1] if second else 1
        if size < before:
            assert size == max(1, *recent) if len(recent) > 1 else size == max(1, recent[0])
