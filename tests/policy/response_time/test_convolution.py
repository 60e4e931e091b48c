import numpy as np
import pytest
from numpy.testing import assert_allclose

from policy.response_time.convolution import convolve


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 7), (32, 32), (155, 75)])
def test_each_row_is_convolved(first, second):
    random = np.random.default_rng(1)
    left, right = random.random((3, 4, first)), random.random((4, second))
    rows = [[np.convolve(left[i, j], right[j]) for j in range(4)] for i in range(3)]
    assert_allclose(convolve(left, right), rows, rtol=1e-12, atol=1e-12)


def test_what_is_zero_is_not_below_it():
    spike = np.zeros((1, 64))
    spike[0, 5] = 1.0
    assert convolve(spike, spike).min() == 0.0
