"""Poisson probabilities against scipy's, and the convolution against numpy's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import poisson

from policy.numerics.probability import convolve, poisson_pmf, poisson_table

MEANS = np.array([[0.0, 0.3], [7.0, 250.0]])


def test_poisson_probabilities_are_those_of_scipy():
    counts = np.arange(-5, 400)
    expected = np.asarray(poisson.pmf(counts, MEANS[..., None]))
    assert_allclose(poisson_table(400, MEANS), expected[..., 5:], rtol=1e-11, atol=1e-200)
    assert_allclose(poisson_pmf(counts, MEANS[..., None]), expected, rtol=1e-11, atol=1e-200)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 7), (32, 32), (155, 75)])
def test_each_row_is_convolved(first, second):
    random = np.random.default_rng(1)
    left, right = random.random((3, 4, first)), random.random((4, second))
    rows = [[np.convolve(left[i, j], right[j]) for j in range(4)] for i in range(3)]
    assert_allclose(convolve(left, right), rows, rtol=1e-12, atol=1e-12)
