import numpy as np
import pytest
from scipy import stats

from policy.errors import InvalidInputError
from policy.latency_quantiles import LatencyQuantiles
from policy.profile import Profile

MEASURED = np.array([10.0, 50.0, 90.0, 99.0])


def test_the_file_form_keeps_every_percentile_to_the_last_digit():
    percentiles = np.array([0.1 + 0.2, 50.0, 99.9, 99.99991, 99.99994, 99.9999999])
    ratios = np.arange(1.0, 7.0)[:, None] * np.ones(2)
    content = LatencyQuantiles(percentiles, ratios).to_dict()
    assert list(content)[1:3] == ["50", "99.9"]
    found = LatencyQuantiles.from_dict(content, 2)
    np.testing.assert_array_equal(found.percentiles, percentiles)
    np.testing.assert_array_equal(found.ratios, ratios)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"50": 1.0}, "at least two"),
        ({"50": 1.0, "99": "much"}, "must hold numbers by percentile"),
        ({"50": 1.0, "99": [2.0]}, "one ratio or 2"),
        ({"0": 1.0, "99": 2.0}, "between 0 and 100"),
        ({"50": 0.0, "99": 0.9}, "above 0"),
    ],
)
def test_malformed_quantiles_are_refused(content, message):
    with pytest.raises(InvalidInputError, match=message):
        Profile.from_dict({"latency_ms": [1.0, 1.5], "latency_quantiles": content})


@pytest.mark.parametrize("variation", [0.02, 0.1, 0.3])
def test_four_measured_quantiles_are_enough_for_a_gamma_distribution(variation):
    gamma = stats.gamma(variation**-2, scale=variation**2)
    quantiles = LatencyQuantiles(MEASURED, gamma.ppf(MEASURED / 100)[:, None])
    (ratios,), weights = quantiles.points
    mean = ratios @ weights
    assert mean == pytest.approx(1.0, rel=5e-4)
    assert np.sqrt((ratios - mean) ** 2 @ weights) == pytest.approx(variation, rel=5e-3)
    ranks = np.cumsum(weights) - weights / 2
    for rank in (0.01, 0.3, 0.7, 0.95, 0.999):
        assert np.interp(rank, ranks, ratios) == pytest.approx(gamma.ppf(rank), rel=0.025)
