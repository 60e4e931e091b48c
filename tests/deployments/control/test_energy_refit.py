import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.control.energy_refit import EnergyRefit
from policy.profile import Profile

SIZES = np.arange(1, 9)
LATENCY_MS = 2.0 + 0.5 * SIZES
ABOVE_IDLE_MJ = 30.0 + 12.0 * SIZES
TICK_MS = 1000.0


def profile(idle_w, factor):
    energy_mj = idle_w * LATENCY_MS + factor * ABOVE_IDLE_MJ
    return Profile("m", "d", LATENCY_MS, energy_mj, idle_power_w=idle_w)


def followed(believed: Profile, device: Profile, ticks, seed, noise):
    """Return the profiles that follow from ticks on `device`, a third of them without batches."""
    rng, refit, found = np.random.default_rng(seed), EnergyRefit(), [believed]
    for number in range(ticks):
        sizes = rng.integers(1, 9, rng.integers(1, 100) if number % 3 else 0)
        energy_mj = device.energy_mj_for_weight(1.0)[sizes - 1].sum()
        energy_mj += (device.idle_power_w or 0.0) * TICK_MS
        refit.observe(energy_mj * rng.normal(1.0, noise), TICK_MS, sizes.tolist())
        if number % EnergyRefit.MIN_TICKS == 0:
            revised = refit.revise(found[-1])
            found += [] if revised is None else [revised]
    return found


@settings(max_examples=30)
@given(st.floats(0.0, 20.0), st.floats(0.4, 3.0), st.integers(0, 99))
def test_the_profile_comes_close_to_the_device(idle_w, factor, seed):
    device = profile(idle_w, factor)
    last = followed(profile(8.0, 1.0), device, 150, seed, noise=0.01)[-1]
    assert last.energy_mj is not None
    tolerance = EnergyRefit.TOLERANCE + 0.02
    above_idle = last.energy_mj_for_weight(1.0) / device.energy_mj_for_weight(1.0)
    assert above_idle == pytest.approx(np.ones(8), abs=tolerance)
    assert last.idle_power_w == pytest.approx(idle_w, abs=0.02, rel=tolerance)


@settings(max_examples=30)
@given(st.floats(0.0, 20.0), st.integers(0, 99))
def test_noise_changes_nothing(idle_w, seed):
    right = profile(idle_w, 1.0)
    assert followed(right, right, 150, seed, noise=0.04) == [right]


def test_the_power_is_the_mean_of_the_last_ticks():
    refit = EnergyRefit()
    assert refit.power_w is None
    for power_w in (1000.0, *range(1, EnergyRefit.POWER_TICKS + 1)):
        refit.observe(power_w * TICK_MS, TICK_MS, [])
    assert refit.power_w == pytest.approx(5.5)
