from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.control.latency_refit import MAX_RATIO, LatencyRefit
from policy.latency_quantiles import LatencyQuantiles
from policy.profile import Profile

PROFILE = Profile("m", "d", 1.0 + 0.3 * np.arange(1, 33))
QUANTILES = LatencyQuantiles.from_dict({"10": 0.9, "50": 1.0, "90": 1.2, "99": 1.4}, 32)


def run(refit: LatencyRefit, true_ms, sizes, seed=0):
    """Return after how many batches of random `sizes` the profile is refitted; 0 if never."""
    rng = np.random.default_rng(seed)
    for number in range(1, 2000):
        size = int(rng.choice(sizes))
        refit.observe(size, true_ms[size - 1] * rng.lognormal(0, 0.05))
        if number % 10 == 0 and refit.revise() is not None:
            return number
    return 0


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_profile_that_is_off_by_two_is_refitted_at_every_size(factor):
    refit = LatencyRefit(PROFILE)
    true_ms = factor * PROFILE.latency_ms
    assert 0 < run(refit, true_ms, [3, 4, 5, 12]) <= 100
    np.testing.assert_allclose(refit.profile.latency_ms, true_ms, rtol=0.1)


@given(st.dictionaries(st.integers(1, 32), st.floats(0.1, 1000), min_size=1, max_size=8))
def test_a_refit_is_always_a_valid_profile(medians_ms):
    refit = LatencyRefit(PROFILE)
    for _ in range(2):
        for size, duration_ms in medians_ms.items():
            for _ in range(LatencyRefit.MIN_BATCHES):
                refit.observe(size, duration_ms)
        refit.revise()
    latency_ms = refit.profile.latency_ms
    assert (latency_ms > 0).all()
    assert (np.diff(latency_ms) >= 0).all()


def test_the_mlp_of_the_benchmark_is_refitted_within_two_checks():
    """Profiled at 0.025 ms, live at 0.17 ms and more: sizes changed, so none had eight batches."""
    profile = Profile("mlp", "cpu", np.linspace(0.025, 0.3, 128))
    refit = LatencyRefit(profile)
    rng = np.random.default_rng(1)
    revisions = []
    for _ in range(2):
        # 16 batches of 16 sizes, and half of the times are twice the others.
        for size in rng.choice(128, size=16, replace=False) + 1:
            live_ms = 0.17 + 0.005 * size
            refit.observe(int(size), live_ms * rng.choice([0.75, 1.5]))
        revisions.append(refit.revise())
    assert revisions[0] is None
    assert revisions[1] is not None
    sizes = np.arange(8, 121)
    factors = refit.profile.latency_ms[sizes - 1] / (0.17 + 0.005 * sizes)
    assert factors.min() > 0.6
    assert factors.max() < 1.8


def test_a_check_without_new_batches_decides_nothing_and_few_batches_leave_the_quantiles():
    refit = LatencyRefit(replace(PROFILE, latency_quantiles=QUANTILES))
    for revised in (False, True):
        for _ in range(30):
            refit.observe(4, 2 * float(PROFILE.latency_ms[3]))
        assert (refit.revise() is not None) == revised
        assert [refit.revise() for _ in range(5)] == 5 * [None]
    assert refit.profile.latency_quantiles is QUANTILES


def test_wide_noise_does_not_refit_a_right_profile():
    """With many sizes and wide noise, some size has a median that is off by a quarter."""
    rng = np.random.default_rng(2)
    refit = LatencyRefit(PROFILE)
    for _ in range(100):
        for size in rng.integers(1, 33, size=40):
            refit.observe(int(size), PROFILE.latency_ms[size - 1] * rng.lognormal(0, 0.5))
        assert refit.revise() is None


def test_a_slower_device_still_draws_its_idle_power():
    energy_mj = 20.0 * PROFILE.latency_ms
    profile = Profile("m", "d", PROFILE.latency_ms, energy_mj=energy_mj, idle_power_w=8.0)
    refit = LatencyRefit(profile)
    assert run(refit, 4 * profile.latency_ms, [1, 8, 32]) > 0
    longer_ms = refit.profile.latency_ms - profile.latency_ms
    np.testing.assert_allclose(refit.profile.energy_mj, energy_mj + 8.0 * longer_ms)


def refitted_ratios(draw):
    """Refit to batches that take twice the profile's time, times what is drawn for each."""
    refit = LatencyRefit(replace(PROFILE, latency_quantiles=QUANTILES))
    rng = np.random.default_rng(4)
    for _ in range(2):
        for size in rng.integers(1, 33, size=500):
            refit.observe(int(size), 2 * PROFILE.latency_ms[size - 1] * draw(rng))
        revised = refit.revise()
    return revised.latency_quantiles.ratios


def test_a_refit_measures_how_batch_times_vary():
    ratios = refitted_ratios(lambda rng: rng.lognormal(0, 0.5))
    normal = np.array([-1.6449, -0.6745, 0.0, 0.6745, 1.2816, 1.6449, 2.3263])
    np.testing.assert_allclose(ratios.mean(axis=1), np.exp(0.5 * normal), rtol=0.15)


def test_stalls_of_the_machine_do_not_make_the_quantiles_as_wide_as_themselves():
    ratios = refitted_ratios(lambda rng: 100.0 if rng.random() < 0.05 else 1.0)
    np.testing.assert_allclose(ratios[-1], MAX_RATIO * ratios[2])
    assert (np.diff(ratios, axis=0) >= 0).all()
