import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.simulator.autoscalers.peak import Peak
from tests.support.autoscaling.fleet_views import fleet_sizes


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
