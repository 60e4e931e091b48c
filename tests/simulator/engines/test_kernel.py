import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher
from scipy import stats

from simulator import arrivals
from simulator.engines import kernel
from simulator.engines.counters import bin_edges_ms
from simulator.engines.kernel import BINS, bin_of, draw

EDGES = bin_edges_ms()


@pytest.mark.parametrize("module", [arrivals, kernel])
def test_compiled_code_is_never_older_than_what_it_calls(module):
    # numba keeps compiled code until the file of the function changes, whatever it calls.
    functions = {
        name: value for name, value in vars(module).items() if isinstance(value, Dispatcher)
    }
    assert functions
    for name, function in functions.items():
        assert inspect.getsourcefile(function.py_func) == module.__file__, name


def test_the_generator_is_splitmix64():
    # The first two outputs from 1234567, as widely published with the reference code; `draw`
    # takes the upper half of each.
    state = np.array([1234567], np.uint64)
    assert draw(state, 2**32) == 6457827717110365317 >> 32
    assert draw(state, 2**32) == 3203168211198807973 >> 32


def test_all_numbers_are_equally_likely():
    state = np.array([5], np.uint64)
    counts = np.bincount([draw(state, 7) for _ in range(7000)], minlength=7)
    assert stats.chisquare(counts).pvalue > 0.01


def test_bins_are_narrower_than_half_a_percent():
    assert EDGES.size == BINS + 1
    assert np.all(np.diff(EDGES) / EDGES[:-1] <= 0.005)


@settings(max_examples=200)
@given(st.floats(EDGES[0], EDGES[-1], exclude_max=True) | st.sampled_from(EDGES[:-1].tolist()))
def test_a_time_falls_into_the_bin_whose_edges_hold_it(response_ms):
    index = bin_of(response_ms)
    assert EDGES[index] <= response_ms < EDGES[index + 1]


def test_what_is_beyond_the_ends_falls_into_the_end_bins():
    assert [bin_of(ms) for ms in (0.0, 1e-6)] == [0, 0]
    assert bin_of(1e12) == BINS - 1
