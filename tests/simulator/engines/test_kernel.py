import inspect

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from scipy import stats

from simulator import arrivals
from simulator.engines import kernel
from simulator.engines.kernel import draw, draw_ratio


@pytest.mark.parametrize("module", [arrivals, kernel])
def test_compiled_functions_call_none_of_another_file(module):
    # Numba reuses cached code until the file of the function itself changes.
    functions = {
        name: value for name, value in vars(module).items() if isinstance(value, Dispatcher)
    }
    assert functions
    for name, function in functions.items():
        assert inspect.getsourcefile(function.py_func) == module.__file__, name


def test_the_generator_is_splitmix64():
    # The first two outputs for the seed 1234567, as published with the reference code; `draw` uses
    # the upper half of each.
    state = np.array([1234567], np.uint64)
    assert draw(state, 2**32) == 6457827717110365317 >> 32
    assert draw(state, 2**32) == 3203168211198807973 >> 32


def test_all_numbers_are_equally_likely():
    state = np.array([5], np.uint64)
    counts = np.bincount([draw(state, 7) for _ in range(7000)], minlength=7)
    assert stats.chisquare(counts).pvalue > 0.01


def test_batch_times_follow_their_distribution():
    ranks = np.array([0.2, 0.5, 1.0])
    ratios = np.array([[9.0, 9.0, 9.0], [0.5, 1.0, 2.0]])
    streams = np.array([7, 3], np.uint64)
    drawn = [draw_ratio(ranks, ratios, 2, streams, 1) for _ in range(5000)]
    counts = [drawn.count(ratio) for ratio in (0.5, 1.0, 2.0)]
    assert sum(counts) == len(drawn)
    assert stats.chisquare(counts, 5000 * np.array([0.2, 0.3, 0.5])).pvalue > 0.01
    assert streams[0] == 7  # the other stream is untouched
