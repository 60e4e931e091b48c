import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.simulator.autoscalers.peak import Peak, RecentMaximum
from tests.support.autoscaling.fleet_views import fleet_sizes


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=30),
    st.integers(0, 8),
)
def test_the_recent_maximum_is_that_of_a_window(steps, length_s):
    maximum, seen, now_s = RecentMaximum(length_s), [], 0
    for wait_s, value in steps:
        now_s += wait_s
        seen.append((now_s, value))
        recent = [value for time_s, value in seen if now_s - time_s <= length_s]
        assert maximum.add(now_s, value) == max(recent)


@given(
    st.lists(st.integers(0, 900), min_size=1, max_size=40),
    st.floats(0.5, 3.0),
    st.integers(1, 20),
)
def test_there_are_replicas_for_the_busiest_second_of_the_window(offered, headroom, window_s):
    sizes = fleet_sizes(Peak(100, headroom, window_s), [float(count) for count in offered])
    for second, size in enumerate(sizes):
        peak = max(offered[max(0, second + 1 - window_s) : second + 1])
        assert size == max(1, np.ceil(headroom * peak / 100 - 1e-9))
