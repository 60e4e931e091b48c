import numpy as np
from scipy import stats

from simulator.randomness import draw


def test_it_is_splitmix64():
    # The first two outputs from 1234567, as widely published with the reference code; `draw`
    # takes the upper half of each.
    state = np.array([1234567], np.uint64)
    assert draw(state, 2**32) == 6457827717110365317 >> 32
    assert draw(state, 2**32) == 3203168211198807973 >> 32


def test_all_numbers_are_equally_likely():
    state = np.array([5], np.uint64)
    counts = np.bincount([draw(state, 7) for _ in range(7000)], minlength=7)
    assert stats.chisquare(counts).pvalue > 0.01
