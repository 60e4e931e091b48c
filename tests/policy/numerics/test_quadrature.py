import numpy as np
import pytest
from numpy.testing import assert_allclose

from policy.numerics.quadrature import CumulativeIntegral, Panels, gauss_legendre


@pytest.mark.parametrize("order", [1, 5, 24])
def test_gauss_legendre_is_exact_for_polynomials(order):
    points, weights = gauss_legendre(order)
    for power in range(2 * order):
        assert weights @ points**power == pytest.approx(1 / (power + 1), rel=1e-13)


def test_panels_are_cut_at_the_jumps_and_no_wider_than_asked():
    panels = Panels.cut(10.0, np.array([2.5, 2.5 + 1e-12, 7.0, 11.0, -1.0]), 2.0)
    assert {0.0, 2.5, 7.0, 10.0} <= set(panels.edges_ms.tolist())
    assert np.all(panels.widths_ms > 0)
    assert panels.widths_ms.max() <= 2.0
    assert panels.integral(np.ones(panels.nodes_ms.shape)) == pytest.approx(10.0)


def test_cumulative_integrals_are_those_of_the_density():
    panels = Panels.cut(4.0, np.array([1.0]), 0.5)
    density = np.where(panels.nodes_ms < 1, 2.0, np.exp(-panels.nodes_ms))
    cumulative = CumulativeIntegral(panels, density)
    times = np.array([-1.0, 0.0, 0.3, 1.0, 2.2, 4.0, 9.0])
    inside = np.clip(times, 0, 4)
    expected = np.where(inside < 1, 2 * inside, 2 + np.exp(-1.0) - np.exp(-inside))
    assert_allclose(cumulative.at(times), expected, atol=1e-9)
    assert cumulative.total == pytest.approx(panels.integral(density))
    rows = CumulativeIntegral(panels, np.stack([density, 3 * density]))
    both = rows.at(np.stack([times, times], axis=1))
    assert_allclose(both, np.stack([expected, 3 * expected], axis=1), atol=1e-8)
