import time

import numpy as np
import pytest

from deployments.pipelines.core.errors import StageError
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch
from deployments.pipelines.planning.profiling import measure_profiles
from policy.errors import InvalidInputError


class Slow:
    def __init__(self, fixed_ms):
        self.fixed_s = 1e-3 * fixed_ms

    def predict(self, items):
        time.sleep(self.fixed_s)
        return items


def same(x):
    return x


def stage(name, fixed_ms, **options):
    return Stage(Slow, name, {"fixed_ms": fixed_ms}, place="thread", **options)


async def test_every_stage_is_measured_at_all_its_batch_sizes():
    b = stage("b", 1.0, batch_size=1)
    steps = [
        stage("a", 2.0, batch_size=6, max_wait_ms=1000.0),
        Ensemble([Stage(same, "left", place="loop"), []]),
        Each([Switch(bool, {True: b, False: Stage(len, place="loop")})]),
    ]
    seen: list[str] = []
    with pytest.raises(StageError, match="len"):
        await measure_profiles(steps, 7, seconds=0.001)
    steps[2] = Each([b])
    profiles = await measure_profiles(steps, 7, seconds=0.001, report=seen.append)
    assert list(profiles) == seen == ["a", "left", "b"]
    assert profiles["a"].max_batch_size == 6
    assert profiles["a"].measured["batch_sizes"] == [1, 2, 4, 6]
    assert 2.0 <= profiles["a"].latency_ms[0] <= profiles["a"].latency_ms[-1]
    assert profiles["b"].latency_ms[0] >= 1.0
    ratios = profiles["a"].latency_quantiles.ratios
    assert ratios.shape[1] == 6
    assert np.all((ratios[0] <= 1) & (ratios[-1] >= 1))
    with pytest.raises(InvalidInputError, match="no element"):
        await measure_profiles([Each(Stage(same, place="loop"))], [], seconds=0.001)
