"""MMPP(2): its counts, and the process found from counts."""

import numpy as np
import pytest

from policy.errors import InvalidInputError
from policy.mmpp import CountMoments, Mmpp
from policy.probability import poisson_table
from tests.support.mmpp_counts import mmpp_counts

BURSTS = Mmpp((500.0, 2000.0), (0.06, 0.02))


def test_equal_rates_are_poisson():
    steady = Mmpp((700.0, 700.0), (0.1, 0.3))
    times_ms = np.array([0.0, 3.0, 40.0])
    counts = steady.counts(80, times_ms).sum(axis=-1)
    expected = poisson_table(80, 0.7 * times_ms)
    np.testing.assert_allclose(counts, np.stack(2 * [expected], axis=-1), atol=1e-14)


def test_counts_of_two_times_convolve_to_those_of_their_sum():
    first, second, both = BURSTS.counts(30, [2.0, 5.0, 7.0])
    for total in (0, 3, 29):
        sums = sum(first[n] @ second[total - n] for n in range(total + 1))
        np.testing.assert_allclose(both[total], sums, rtol=0, atol=2e-11)


def test_counts_sum_to_the_state_probabilities_after_a_time():
    times_ms = [0.0, 1.0, 30.0, 1000.0]
    after = BURSTS.states_after(times_ms)
    np.testing.assert_allclose(BURSTS.counts(2600, times_ms).sum(axis=1), after, atol=1e-13)
    np.testing.assert_allclose(after[-1], np.stack(2 * [BURSTS.state_probabilities]), atol=1e-12)


@pytest.mark.parametrize("window_s", [0.001, 0.05, 1.0])
def test_the_index_of_dispersion_is_that_of_the_counts(window_s):
    counts = BURSTS.state_probabilities @ BURSTS.counts(3000, 1e3 * window_s).sum(axis=-1).T
    n = np.arange(3000)
    mean = counts @ n
    assert mean == pytest.approx(window_s * BURSTS.mean_rate_per_s)
    assert BURSTS.index_of_dispersion(window_s) == pytest.approx(counts @ (n - mean) ** 2 / mean)


@pytest.mark.parametrize(
    ("rates_per_s", "stays_s"),
    [((-1.0, 2.0), (1.0, 1.0)), ((0.0, 0.0), (1.0, 1.0)), ((1.0, 2.0), (0.0, 1.0))],
)
def test_values_out_of_range_are_refused(rates_per_s, stays_s):
    with pytest.raises(InvalidInputError, match="_s: must be"):
        Mmpp(rates_per_s, stays_s)


def observed(process: Mmpp, windows: int, memory_s: float, seed: int) -> CountMoments:
    """Return the moments of counts per 0.1 s."""
    moments = CountMoments(0.1, memory_s)
    for count in mmpp_counts(process, windows, 0.1, seed):
        moments.observe(count)
    return moments


@pytest.mark.parametrize(
    "process",
    [
        Mmpp((90.0, 270.0), (0.5, 0.5)),
        Mmpp((70.0, 270.0), (4.5, 0.5)),  # rare bursts
        Mmpp((100.0, 300.0), (1.0, 3.0)),  # rare lulls
        Mmpp((0.0, 200.0), (0.4, 0.1)),
    ],
)
def test_the_process_is_found_from_its_counts(process):
    found = observed(process, 40_000, 1e5, seed=1).fit()
    assert found is not None
    assert found.mean_rate_per_s == pytest.approx(process.mean_rate_per_s, rel=0.03)
    np.testing.assert_allclose(found.rates_per_s, process.rates_per_s, rtol=0.06, atol=8)
    np.testing.assert_allclose(found.stays_s, process.stays_s, rtol=0.2)


def test_old_bursts_are_forgotten():
    moments = observed(Mmpp((90.0, 270.0), (0.5, 0.5)), 600, 20.0, seed=2)
    assert moments.fit() is not None
    for count in np.random.default_rng(3).poisson(18, 4000).tolist():
        moments.observe(count)
    assert moments.fit() is None


@pytest.mark.parametrize("seed", range(5))
def test_poisson_arrivals_are_not_taken_for_bursts(seed):
    moments = CountMoments(0.1, 200.0)
    assert moments.fit() is None
    for count in np.random.default_rng(seed).poisson(30, 6000).tolist():
        moments.observe(count)
    found = moments.fit()
    # Where chance shows bursts, they are weak.
    assert found is None or max(found.rates_per_s) < 1.2 * found.mean_rate_per_s


def test_mixed_counts_are_the_weighted_sum_of_counts():
    rng = np.random.default_rng(4)
    times_ms, weights = rng.uniform(0, 30, 7), rng.random((7, 2))
    for length in (0, 1, 6, 400):  # few counts are found on a smaller circle than many
        expected = np.einsum("ti,tnij->nj", weights, BURSTS.counts(length, times_ms))
        found = BURSTS.mixed_counts(length, times_ms, weights)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_few_counts_are_the_first_of_many():
    times_ms = [0.5, 12.0, 80.0]
    many = BURSTS.counts(500, times_ms)
    for length in (1, 5, 20):
        few = BURSTS.counts(length, times_ms)
        np.testing.assert_allclose(few, many[:, :length], rtol=0, atol=1e-10)
