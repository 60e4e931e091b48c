import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.simulator.engines.counters import bin_edges_ms
from autoscaler.simulator.engines.kernel import BINS, bin_of

EDGES = bin_edges_ms()


def test_bins_are_narrower_than_half_a_percent():
    assert EDGES.size == BINS + 1
    assert np.all(np.diff(EDGES) / EDGES[:-1] <= 0.005)


@settings(max_examples=200)
@given(st.floats(EDGES[0], EDGES[-1], exclude_max=True) | st.sampled_from(EDGES[:-1].tolist()))
def test_a_time_falls_between_the_edges_of_its_bin(response_ms):
    index = bin_of(response_ms)
    assert EDGES[index] <= response_ms < EDGES[index + 1]


def test_a_time_out_of_range_falls_into_an_end_bin():
    assert [bin_of(ms) for ms in (0.0, 1e-6)] == [0, 0]
    assert bin_of(1e12) == BINS - 1
