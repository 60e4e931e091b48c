import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.forecasting.calibration import (
    MAX_RISK,
    MIN_RISK,
    STEP,
    WindowCalibration,
)

HORIZON_S = 60.0


class Counted(WindowCalibration):
    """A calibration that counts the windows that it judges."""

    judged = missed = 0

    def _count(self, missed):
        super()._count(missed)
        self.judged += 1
        self.missed += missed


def run(calibration, requirements, capacity, begin_s=0):
    """Feed windows: what each requires, and a function from the risk to the capacity ordered."""
    required = {}
    for number, rate in enumerate(requirements):
        end_s = begin_s + 60 * (number + 1)
        required[end_s] = np.full(60, rate)
        for second in range(end_s - 60, end_s, 10):
            calibration.note_order(float(second), capacity(calibration.risk))
        calibration.note_order(float(end_s - 1), capacity(calibration.risk))
        calibration.judge(end_s + 1, HORIZON_S, 0.01, required.get)


@given(st.lists(st.booleans(), min_size=1, max_size=400), st.sampled_from([0.9, 0.99]))
def test_the_share_missed_is_near_what_is_allowed_whatever_the_load_does(misses, share):
    """The guarantee in the module's docstring, for loads that do not push the risk to a bound."""
    calibration = Counted(share)
    before, inside = math.log(calibration.risk), True
    for number, missed in enumerate(misses):
        required = 2.0 if missed else 0.5
        run(calibration, [required], lambda risk: 1.0, begin_s=60 * number)
        inside = inside and MIN_RISK * 1.001 < calibration.risk < MAX_RISK / 1.001
    if inside and calibration.judged:
        share_missed = calibration.missed / calibration.judged
        moved = before - math.log(calibration.risk)
        assert share_missed - (1 - share) == pytest.approx(moved / (STEP * calibration.judged))


@given(st.integers(0, 10**6), st.sampled_from([0, 7, 10, 60, 100]))
def test_what_could_be_served_is_the_least_ordered_in_the_start_time_before(seed, horizon_s):
    random = np.random.default_rng(seed)
    capacities = random.integers(1, 9, 300).astype(float)
    capacities[random.random(300) < 0.8] = 4.0
    calibration = WindowCalibration(0.99)
    for second, capacity in enumerate(capacities):
        calibration.note_order(float(second), capacity)
    served = calibration._served_per_s(240, float(horizon_s))
    least = [capacities[second - horizon_s : second + 1].min() for second in range(180, 240)]
    assert served.tolist() == pytest.approx(least)


@given(st.integers(0, 10**6), st.sampled_from([0, 10, 60]))
def test_windows_that_depend_on_a_limited_order_are_not_judged(seed, horizon_s):
    """They count neither as kept nor as missed, and all others are judged as ever."""
    random = np.random.default_rng(seed)
    limited = np.zeros(900, bool)
    begin = int(random.integers(100, 700))
    limited[begin : begin + int(random.integers(1, 150))] = True
    calibration, judged = Counted(0.99), []
    for second in range(900):
        calibration.note_order(float(second), math.nan if limited[second] else 1.0)
        before = calibration.judged
        calibration.judge(second, horizon_s, 0.01, lambda end_s: np.full(60, 9.0))
        judged += [second] * (calibration.judged - before)
    first = 60 + 60 * math.ceil(horizon_s / 60)
    assert judged == [
        end for end in range(first, 900, 60) if not limited[end - 60 - horizon_s : end].any()
    ]
    assert calibration.missed == calibration.judged


def test_windows_after_a_silence_are_not_judged():
    calibration = Counted(0.99)
    run(calibration, [0.5] * 10, lambda risk: 1.0)
    judged = calibration.judged
    calibration.note_order(1000.0, 1.0)
    calibration.judge(1020, HORIZON_S, 0.01, lambda end_s: np.full(60, 99.0))
    assert (calibration.judged, calibration.missed) == (judged, 0)


def test_a_window_of_unknown_load_is_not_judged():
    calibration = Counted(0.99)
    for second in range(0, 600, 5):
        calibration.note_order(float(second), 1.0)
        calibration.judge(second, HORIZON_S, 0.01, lambda end_s: None)
    assert calibration.judged == 0


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99, 0.99999])
def test_a_new_service_begins_with_less_risk_than_the_share_that_may_be_missed(share):
    risk = WindowCalibration(share).risk
    assert risk == pytest.approx(min(max(0.7 * (1 - share), MIN_RISK), MAX_RISK))


@given(
    st.lists(st.booleans(), max_size=30),
    st.sampled_from([0.98, 0.99, 0.995]),
    st.sampled_from([0.98, 0.99, 0.995]),
)
def test_another_promise_changes_the_risk_in_proportion(misses, before, after):
    """Replicas report their settings only after the calibration was made with the defaults."""
    calibration = WindowCalibration(before)
    run(calibration, [2.0 if missed else 0.5 for missed in misses], lambda risk: 1.0)
    risk = calibration.risk
    calibration.compliant_share = after
    expected = risk * (1 - after) / (1 - before)
    assert calibration.risk == pytest.approx(min(max(expected, MIN_RISK), MAX_RISK))
    calibration.compliant_share = after
    assert calibration.risk == pytest.approx(min(max(expected, MIN_RISK), MAX_RISK))


def test_a_restored_calibration_has_the_same_risk():
    calibration, restored = WindowCalibration(0.99), WindowCalibration(0.99)
    run(calibration, [0.5, 0.5, 0.5, 2.0], lambda risk: 1.0)
    restored.load_state(calibration.state_dict())
    assert restored.risk == pytest.approx(calibration.risk)
    with pytest.raises(ValueError, match="risk"):
        restored.load_state({"risk": 3.0})
