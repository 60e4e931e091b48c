"""Measured and predicted percentiles of the response time."""

import numpy as np
import pytest

from deployments.control import response_times
from deployments.control.response_times import (
    PREDICT_EVERY,
    ResponseTimePercentiles,
)
from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy
from policy.batching_policy import BatchingPolicy
from policy.profile import Profile
from policy.response_time.evaluation import evaluate

PROFILE = Profile("m", "d", np.array([4.0, 5.0, 6.0, 7.0]))
LIMIT_2 = BatchingPolicy.from_control_limit(2, 4, max_wait_ms=30.0)


def core_at(
    rate_per_s: float, policy: BatchingPolicy, monkeypatch: pytest.MonkeyPatch
) -> BatcherCore:
    core = BatcherCore(FixedPolicy(policy), Limits(20.0, 8, PROFILE.latency_ms.tolist()))
    monkeypatch.setattr(core.arrival_rate, "per_s", lambda now_s: rate_per_s)
    return core


async def predicted_ms(core: BatcherCore) -> dict[str, float]:
    percentiles = ResponseTimePercentiles()
    for _ in range(PREDICT_EVERY):
        assert percentiles.predicted_ms == {}
        await percentiles.tick([], lambda: PROFILE, core)
    return percentiles.predicted_ms


async def test_predicts_the_policy_with_the_wait_that_the_limits_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounded = BatchingPolicy.from_control_limit(2, 4, max_wait_ms=20.0)
    evaluation = evaluate(PROFILE, bounded, 100.0)
    assert await predicted_ms(core_at(100.0, LIMIT_2, monkeypatch)) == {
        f"{p:g}": evaluation.response_percentile_ms(p) for p in (50.0, 95.0, 99.0)
    }


@pytest.mark.parametrize("intensity", [0.0, 0.98, 1.2])
async def test_predicts_nothing_without_load_or_near_the_capacity(
    intensity: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = core_at(intensity * PROFILE.capacity_per_s, LIMIT_2, monkeypatch)
    assert await predicted_ms(core) == {}


async def test_predictions_that_take_long_are_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def slow(*arguments: object) -> tuple[list[float], float]:
        calls.append(arguments)
        return [1.0, 2.0, 3.0], 0.2  # 20 s of rest

    monkeypatch.setattr(response_times, "_percentiles_ms", slow)
    percentiles, core = ResponseTimePercentiles(), core_at(100.0, LIMIT_2, monkeypatch)
    made_at = []
    for tick in range(1, 50):
        before = len(calls)
        await percentiles.tick([], lambda: PROFILE, core)
        if len(calls) > before:
            made_at.append(tick)
    assert made_at == [PREDICT_EVERY, PREDICT_EVERY + 20, PREDICT_EVERY + 40]
    assert percentiles.predicted_ms == {"50": 1.0, "95": 2.0, "99": 3.0}


async def test_measured_percentiles_stay_over_a_tick_without_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    percentiles = ResponseTimePercentiles()
    core = core_at(0.0, LIMIT_2, monkeypatch)
    await percentiles.tick([0.001 * n for n in range(1, 102)], lambda: PROFILE, core)
    measured_ms = percentiles.measured_ms
    assert measured_ms == pytest.approx({"50": 51.0, "95": 96.0, "99": 100.0})
    await percentiles.tick([], lambda: PROFILE, core)
    assert percentiles.measured_ms == measured_ms


async def test_the_delay_in_haproxy_is_part_of_the_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_ms = await predicted_ms(core_at(100.0, LIMIT_2, monkeypatch))
    percentiles, core = ResponseTimePercentiles(), core_at(100.0, LIMIT_2, monkeypatch)
    for _ in range(PREDICT_EVERY):
        await percentiles.tick([], lambda: PROFILE, core, 12.0)
    expected_ms = {percentile: ms + 12.0 for percentile, ms in without_ms.items()}
    assert percentiles.predicted_ms == pytest.approx(expected_ms)
