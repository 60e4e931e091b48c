"""The refit of a profile's latency."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.control.latency_refit import LatencyRefit
from policy.latency_quantiles import LatencyQuantiles
from policy.profile import Profile

PROFILE = Profile("m", "d", 1.0 + 0.3 * np.arange(1, 33))


def run(refit: LatencyRefit, true_ms: np.ndarray, sizes: list[int], seed: int = 0) -> int:
    """Return after how many batches of random `sizes` the profile is refitted; 0 if never.

    `revise` is called after every ten batches.
    """
    rng = np.random.default_rng(seed)
    for number in range(1, 2000):
        size = int(rng.choice(sizes))
        refit.observe(size, true_ms[size - 1] * rng.lognormal(0, 0.05))
        if number % 10 == 0 and refit.revise() is not None:
            return number
    return 0


def test_noise_does_not_refit_a_right_profile() -> None:
    assert run(LatencyRefit(PROFILE), PROFILE.latency_ms, list(range(1, 33))) == 0


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_profile_that_is_off_by_two_is_refitted_at_every_size(factor: float) -> None:
    refit = LatencyRefit(PROFILE)
    true_ms = factor * PROFILE.latency_ms
    assert 0 < run(refit, true_ms, [3, 4, 5, 12]) <= 100
    np.testing.assert_allclose(refit.profile.latency_ms, true_ms, rtol=0.1)


def test_one_outlier_changes_nothing() -> None:
    refit = LatencyRefit(PROFILE)
    for _ in range(20):
        refit.observe(4, float(PROFILE.latency_ms[3]))
    refit.observe(4, 500.0)
    assert refit.revise() is None
    assert refit.revise() is None


@given(
    st.dictionaries(st.integers(1, 32), st.floats(0.1, 1000), min_size=1, max_size=8),
)
def test_a_refit_is_always_a_valid_profile(medians_ms: dict[int, float]) -> None:
    refit = LatencyRefit(PROFILE)
    for _ in range(2):
        for size, duration_ms in medians_ms.items():
            for _ in range(LatencyRefit.MIN_BATCHES):
                refit.observe(size, duration_ms)
        refit.revise()
    latency_ms = refit.profile.latency_ms
    assert (latency_ms > 0).all()
    assert (np.diff(latency_ms) >= 0).all()


def test_a_refit_keeps_the_energy() -> None:
    profile = Profile("m", "d", PROFILE.latency_ms, energy_mj=np.arange(1.0, 33.0))
    refit = LatencyRefit(profile)
    assert run(refit, 2 * profile.latency_ms, [8]) > 0
    np.testing.assert_array_equal(refit.profile.energy_mj, profile.energy_mj)


def test_a_refit_keeps_how_batch_times_vary() -> None:
    quantiles = LatencyQuantiles.from_dict({"10": 0.9, "50": 1.0, "99": 1.4}, 32)
    refit = LatencyRefit(replace(PROFILE, latency_quantiles=quantiles))
    assert run(refit, 2 * PROFILE.latency_ms, list(range(1, 33))) > 0
    assert refit.profile.latency_quantiles is quantiles
    means_ms = quantiles.means_ms(refit.profile.latency_ms)
    np.testing.assert_allclose(means_ms, 2 * quantiles.means_ms(PROFILE.latency_ms), rtol=0.1)
