import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import poisson

from policy.response_time.embedded_chain import poisson_pmf, poisson_table

COUNTS = np.arange(400)
MEANS = np.array([[1e-12, 0.3], [7.0, 250.0]])


def test_poisson_probabilities():
    expected = poisson.pmf(COUNTS, MEANS[..., None])
    assert_allclose(poisson_table(COUNTS.size, MEANS), expected, rtol=1e-11, atol=1e-300)
    assert_allclose(poisson_pmf(COUNTS, MEANS[..., None]), expected, rtol=1e-11, atol=1e-300)


def test_nothing_comes_in_no_time():
    assert_allclose(poisson_table(3, 0.0), [1, 0, 0], atol=1e-200)


@pytest.mark.parametrize("count", [-1, -5])
def test_no_count_is_below_0(count):
    assert poisson_pmf(count, 2.0) == 0
