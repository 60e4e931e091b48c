import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.tally import BINS, bin_edges_ms, bin_of

EDGES = bin_edges_ms()


def test_bins_are_narrower_than_one_percent():
    assert EDGES.size == BINS + 1
    assert np.all(np.diff(EDGES) / EDGES[:-1] <= 0.01)


@settings(max_examples=200)
@given(st.floats(EDGES[0], EDGES[-1], exclude_max=True) | st.sampled_from(EDGES[:-1].tolist()))
def test_a_time_falls_into_the_bin_whose_edges_hold_it(response_ms):
    index = bin_of(response_ms)
    assert EDGES[index] <= response_ms < EDGES[index + 1]


def test_what_is_beyond_the_ends_falls_into_the_end_bins():
    assert [bin_of(ms) for ms in (0.0, 1e-6)] == [0, 0]
    assert bin_of(1e12) == BINS - 1
