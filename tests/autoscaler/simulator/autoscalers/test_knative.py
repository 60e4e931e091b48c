"""The KPA with the numbers of Knative's own tests (pkg/autoscaler/scaling/autoscaler_test.go)."""

import pytest

from autoscaler.simulator.autoscalers.knative import Knative, KnativeScale, KnativeSettings
from tests.support.autoscaling.fleet_views import view


def scale(target: float, ready: int = 1, **changed: float) -> KnativeScale:
    """Set it up as `newTestAutoscaler` does: factors of at most ten, all of the target used."""
    chosen = {"max_scale_up_rate": 10.0, "max_scale_down_rate": 10.0, **changed}
    return KnativeScale(KnativeSettings(target, target_utilization=1, **chosen), ready, 0.0)


@pytest.mark.parametrize(
    ("target", "stable", "panic", "ready", "changed", "expected"),
    [
        (10, 0, 0, 1, {}, 0),  # AutoscalerNoDataAtZeroNoAutoscale
        (181, 21, 26, 1, {}, 1),  # AutoscalerStableModeUnlimitedTBC
        (10, 50, 50, 1, {}, 5),  # AutoscalerStableModeNoChange
        (1, 3, 3.1, 2, {"max_scale_up_rate": 1.1}, 3),  # …IncreaseWithSmallScaleUpRate
        (10, 1, 1, 100, {"max_scale_down_rate": 1.1}, 90),  # …DecreaseWithSmallScaleDownRate
        (10, 50, 100, 1, {}, 10),  # AutoscalerPanicModeDoublePodCount
        (10, 1000, 1001, 1, {}, 10),  # TestAutoscalerRateLimitScaleUp
        (10, 1, 1, 10, {}, 1),  # TestAutoscalerRateLimitScaleDown
        (10, 1000, 888, 0, {}, 10),  # TestAutoscalerUseOnePodAsMinimumIfEndpointsNotFound
    ],
)
def test_a_single_decision(target, stable, panic, ready, changed, expected) -> None:
    assert scale(target, **changed).next(0.0, stable, panic, ready) == expected


def test_panics_then_scales_in_after_the_stable_window() -> None:
    """TestAutoscalerPanicThenUnPanicScaleDown."""
    kpa = scale(10)
    assert kpa.next(0, 100, 100, 1) == 10
    assert kpa.next(0, 100, 1000, 10) == 100
    assert kpa.next(30, 1, 1, 10) == 100
    assert kpa.next(61, 1, 1, 10) == 1


def test_leaves_panic_after_a_slow_increase() -> None:
    """TestAutoscalerUnpanicAfterSlowIncrease, and TestAutoscalerExtendPanicWindow."""
    kpa, extended = scale(1), scale(1)
    assert kpa.next(0, 11, 25, 10) == extended.next(0, 11, 25, 10) == 25
    assert kpa.next(30, 30, 41, 40) == 41
    assert kpa.next(62, 50, 56, 55) == 50
    assert not kpa.is_panicking
    assert extended.next(30, 30, 80, 40) == 80
    assert extended.next(62, 80, 80, 80) == 80
    assert extended.is_panicking


def test_tracks_exponential_growth() -> None:
    """TestAutoscalerPanicModeExponentialTrackAndStabilize."""
    kpa, ready = scale(1), 1
    for load in (6, 36, 216, 1296, 1296):
        ready = kpa.next(1.0, load, load, ready)
        assert ready == load


def test_starts_in_panic_with_more_than_one_pod() -> None:
    """TestStartInPanicMode: without a history it must not scale in."""
    assert not scale(100, ready=1).is_panicking
    started = scale(100, ready=2)
    assert started.is_panicking
    assert started.next(59, 0, 0, 2) == 2
    assert started.next(61, 0, 0, 2) == 0


def test_keeps_the_highest_decision_of_the_scale_down_delay() -> None:
    """TestAutoscalerScaleDownDelay, simple and gradual."""
    kpa = scale(10, panic_threshold=100, scale_down_delay_s=300)
    minute = 60
    assert kpa.next(2, 40, 40, 1) == 4
    assert kpa.next(5 * minute, 0, 0, 1) == 4
    assert kpa.next(5 * minute + 2, 0, 0, 1) == 0
    assert kpa.next(9 * minute, 40, 40, 1) == 4
    assert kpa.next(10 * minute, 30, 30, 1) == 4
    assert kpa.next(11 * minute, 0, 0, 1) == 4
    assert kpa.next(14 * minute, 0, 0, 1) == 3
    assert kpa.next(15 * minute, 0, 0, 1) == 0


def test_decides_every_two_seconds_on_the_mean_of_the_stable_minute() -> None:
    kpa = Knative(KnativeSettings(concurrency_target=10))  # of which it uses 70%
    sizes = [kpa.replicas(view(second, ongoing=70)) for second in range(1, 61)]
    # Ten pods instead of one is a panic; it stays at ten.
    assert set(sizes) == {10}
    after = [kpa.replicas(view(60 + second, ongoing=35, ready=10)) for second in range(1, 122)]
    # The panic is over 60 s after the last crossing of the threshold (at 1 s), and the mean of the
    # stable window falls from 70 to 35 in a minute.
    assert after[-1] == 5
    assert sorted(after, reverse=True) == after
    changes = [second for second in range(1, len(after)) if after[second] != after[second - 1]]
    assert all(second % 2 == 0 for second in changes)
