"""The KPA with the numbers of Knative's own tests (pkg/autoscaler/scaling/autoscaler_test.go)."""

import pytest

from autoscaler.simulator.autoscalers.knative import Knative, KnativeScale, KnativeSettings
from tests.support.autoscaling.fleet_views import view


def scale(target, ready=1, **changed):
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
def test_a_single_decision(target, stable, panic, ready, changed, expected):
    assert scale(target, **changed).next(0.0, stable, panic, ready) == expected


DELAYED = {"panic_threshold": 100, "scale_down_delay_s": 300}


@pytest.mark.parametrize(
    ("started", "decisions", "is_panicking"),
    [
        # TestAutoscalerPanicThenUnPanicScaleDown
        (
            scale(10),
            [(0, 100, 100, 1, 10), (0, 100, 1000, 10, 100), (30, 1, 1, 10, 100), (61, 1, 1, 10, 1)],
            False,
        ),
        # TestAutoscalerUnpanicAfterSlowIncrease
        (scale(1), [(0, 11, 25, 10, 25), (30, 30, 41, 40, 41), (62, 50, 56, 55, 50)], False),
        # TestAutoscalerExtendPanicWindow
        (scale(1), [(0, 11, 25, 10, 25), (30, 30, 80, 40, 80), (62, 80, 80, 80, 80)], True),
        # TestAutoscalerPanicModeExponentialTrackAndStabilize
        (scale(1), [(1, 6**n, 6**n, 6 ** (n - 1), 6**n) for n in range(1, 5)], True),
        # TestStartInPanicMode: without a history it must not scale in.
        (scale(100, ready=2), [(59, 0, 0, 2, 2)], True),
        (scale(100, ready=2), [(61, 0, 0, 2, 0)], False),
        # TestAutoscalerScaleDownDelay, simple and gradual
        (scale(10, **DELAYED), [(2, 40, 40, 1, 4), (300, 0, 0, 1, 4), (302, 0, 0, 1, 0)], False),
        (
            scale(10, **DELAYED),
            [
                *((540, 40, 40, 1, 4), (600, 30, 30, 1, 4), (660, 0, 0, 1, 4)),
                *((840, 0, 0, 1, 3), (900, 0, 0, 1, 0)),
            ],
            False,
        ),
    ],
)
def test_a_series_of_decisions(started, decisions, is_panicking):
    for now_s, stable, panic, ready, expected in decisions:
        assert started.next(now_s, stable, panic, ready) == expected
    assert started.is_panicking is is_panicking


def test_decides_every_two_seconds_on_the_mean_of_the_stable_minute():
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
