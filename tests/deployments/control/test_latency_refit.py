"""What a replica learns, without a clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.control.corrections import LatencyRefit, WaitCorrection
from policy.profile import Profile

PROFILE = Profile("m", "d", 1.0 + 0.3 * np.arange(1, 33))


def run(learner: LatencyRefit, true_ms: np.ndarray, sizes: list[int], seed: int = 0) -> int:
    """Run batches of random `sizes`, asking every ten; say after how many a new profile came."""
    rng = np.random.default_rng(seed)
    for number in range(1, 2000):
        size = int(rng.choice(sizes))
        learner.observe(size, true_ms[size - 1] * rng.lognormal(0, 0.05))
        if number % 10 == 0 and learner.revise() is not None:
            return number
    return 0


def test_a_right_profile_is_left_alone_whatever_the_noise() -> None:
    assert run(LatencyRefit(PROFILE), PROFILE.latency_ms, list(range(1, 33))) == 0


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_profile_off_by_two_either_way_is_mended_at_every_size(factor: float) -> None:
    learner = LatencyRefit(PROFILE)
    true_ms = factor * PROFILE.latency_ms
    assert 0 < run(learner, true_ms, [3, 4, 5, 12]) <= 100
    np.testing.assert_allclose(learner.profile.latency_ms, true_ms, rtol=0.1)


def test_one_outlier_changes_nothing() -> None:
    learner = LatencyRefit(PROFILE)
    for _ in range(20):
        learner.observe(4, float(PROFILE.latency_ms[3]))
    learner.observe(4, 500.0)
    assert learner.revise() is None
    assert learner.revise() is None


@given(
    st.dictionaries(st.integers(1, 32), st.floats(0.1, 1000), min_size=1, max_size=8),
)
def test_what_is_learned_is_always_a_valid_profile(medians_ms: dict[int, float]) -> None:
    learner = LatencyRefit(PROFILE)
    for _ in range(2):
        for size, duration_ms in medians_ms.items():
            for _ in range(LatencyRefit.ENOUGH):
                learner.observe(size, duration_ms)
        learner.revise()
    latency_ms = learner.profile.latency_ms
    assert (latency_ms > 0).all()
    assert (np.diff(latency_ms) >= 0).all()


def test_the_believed_energy_stays() -> None:
    profile = Profile("m", "d", PROFILE.latency_ms, energy_mj=np.arange(1.0, 33.0))
    learner = LatencyRefit(profile)
    assert run(learner, 2 * profile.latency_ms, [8]) > 0
    np.testing.assert_array_equal(learner.profile.energy_mj, profile.energy_mj)


def test_waits_shrink_while_too_many_are_late_and_grow_back_when_few_are() -> None:
    correction = WaitCorrection()
    for _ in range(30):
        correction.revise(requests=200, late=10, allowed_share=0.01)
    assert correction.factor < 0.01
    for _ in range(200):
        correction.revise(requests=200, late=0, allowed_share=0.01)
    assert correction.factor == 1.0


def test_waits_settle_where_the_sla_just_holds() -> None:
    """Late requests fall with the factor; the correction must find a factor that keeps 1%."""
    rng = np.random.default_rng(1)
    correction = WaitCorrection()
    lates = []
    for _ in range(300):
        late = int(rng.binomial(300, 0.03 * correction.factor))
        correction.revise(300, late, allowed_share=0.01)
        lates.append(late)
    assert np.mean(lates[50:]) / 300 <= 0.012
    assert correction.factor > 0.05


def test_a_handful_of_requests_proves_nothing() -> None:
    correction = WaitCorrection()
    assert correction.revise(requests=20, late=5, allowed_share=0.01) == 1.0


def test_silence_changes_nothing() -> None:
    correction = WaitCorrection()
    correction.revise(2000, 100, 0.01)
    factor = correction.factor
    assert correction.revise(0, 0, 0.01) == factor
