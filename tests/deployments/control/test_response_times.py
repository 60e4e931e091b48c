import numpy as np
import pytest

from deployments.control import response_times
from deployments.control.response_times import PREDICT_EVERY, ResponseTimePercentiles
from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy
from policy.batching_policy import BatchingPolicy
from policy.profile import Profile
from policy.response_time.evaluation import evaluate

PROFILE = Profile("m", "d", np.array([4.0, 5.0, 6.0, 7.0]))
LIMIT_2 = BatchingPolicy.from_control_limit(2, 4, max_wait_ms=30.0)


def core_at(rate_per_s, monkeypatch):
    core = BatcherCore(FixedPolicy(LIMIT_2), Limits(20.0, 8, PROFILE.latency_ms.tolist()))
    monkeypatch.setattr(core.arrival_rate, "per_s", lambda now_s: rate_per_s)
    return core


@pytest.mark.parametrize(
    ("intensity", "proxy_delay_ms", "predicts"),
    [(0.2, 0.0, True), (0.2, 12.0, True), (0.0, 0.0, False), (0.98, 0.0, False), (1.2, 9.0, False)],
)
async def test_predicts_the_policy_with_the_wait_that_the_limits_allow_and_the_delay_in_haproxy(
    intensity, proxy_delay_ms, predicts, monkeypatch
):
    """Nothing without load or near the capacity."""
    rate_per_s = intensity * PROFILE.capacity_per_s
    percentiles, core = ResponseTimePercentiles(), core_at(rate_per_s, monkeypatch)
    for _ in range(PREDICT_EVERY):
        assert percentiles.predicted_ms == {}
        await percentiles.tick([], lambda: PROFILE, core, proxy_delay_ms)
    expected_ms = {}
    if predicts:
        bounded = BatchingPolicy.from_control_limit(2, 4, max_wait_ms=20.0)
        evaluation = evaluate(PROFILE, bounded, rate_per_s)
        expected_ms = {
            f"{p:g}": evaluation.response_percentile_ms(p) + proxy_delay_ms
            for p in (50.0, 95.0, 99.0)
        }
    assert percentiles.predicted_ms == pytest.approx(expected_ms)


async def test_predictions_that_take_long_are_seldom(monkeypatch):
    made_at: list[int] = []

    def slow(*arguments):
        made_at.append(percentiles._ticks)
        return [1.0, 2.0, 3.0], 20.0, 0.2  # 20 s of rest

    monkeypatch.setattr(response_times, "_evaluated", slow)
    percentiles, core = ResponseTimePercentiles(), core_at(100.0, monkeypatch)
    for _ in range(1, 50):
        await percentiles.tick([], lambda: PROFILE, core)
    assert made_at == [PREDICT_EVERY, PREDICT_EVERY + 20, PREDICT_EVERY + 40]
    assert percentiles.predicted_ms == {"50": 1.0, "95": 2.0, "99": 3.0}
    assert percentiles.predicted_power_w == 20.0


async def test_measured_percentiles_stay_over_a_tick_without_answers(monkeypatch):
    percentiles = ResponseTimePercentiles()
    for times_s in ([0.001 * n for n in range(1, 102)], []):
        await percentiles.tick(times_s, lambda: PROFILE, core_at(0.0, monkeypatch))
        assert percentiles.measured_ms == pytest.approx({"50": 51.0, "95": 96.0, "99": 100.0})
