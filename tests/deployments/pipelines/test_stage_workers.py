"""The upkeep of profiles and policies while a pipeline runs."""

import time
from collections import Counter

import numpy as np
import pytest

from deployments.pipelines import stage_workers
from deployments.pipelines.core.items import Flow, Item, StageBatch
from deployments.pipelines.stage_workers import StageWorkers
from policy.batcher.requests import Batch, StartReason
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile
from sojourn import Pipeline, Stage
from tests.support.pipelines.stages import Batched, shift
from tests.support.waiting import until


def feed(pipeline, durations_ms):
    workers = pipeline._workers
    core = pipeline.core.stages[0]
    given_up = Flow(0, 0.0)
    given_up.done = True
    for size, ms in durations_ms:
        formed = Batch((), size, StartReason.LIMIT)
        batch = StageBatch([Item(given_up)] * size, time.monotonic() - 1e-3 * ms, formed)
        core.in_service += size
        workers.batch_ended(0, batch, [None] * size)


async def test_a_wrong_profile_is_corrected_and_its_policy_solved_again(monkeypatch):
    profile = Profile("m", "d", np.array([10.0, 11.0, 12.0, 13.0]))
    stage = Stage(Batched, place="thread", batch_size=4, policy="smdp", profile=profile)
    solved: list[int] = []
    monkeypatch.setattr(StageWorkers, "_solve_soon", lambda _, number: solved.append(number))
    async with Pipeline([stage, Stage(shift, place="loop")]) as pipeline:
        core = pipeline.core.stages[0]
        feed(pipeline, [(size, 9.0 + size) for size in (1, 2, 3, 4)] * 8)
        assert pipeline._workers.refit() == pipeline._workers.refit() == []
        twice = [(size, 18.0 + 2 * size) for size in (1, 2, 3, 4)]
        # All that is remembered must be of the slower kind before it is believed.
        corrected: list[str] = []
        for _ in range(20):
            feed(pipeline, twice * 4)
            corrected += pipeline._workers.refit()
        assert "batched" in corrected
        assert solved == [0, 1, *[0] * len(corrected)]
        for size in (1, 4):
            assert core.latency_ms(size) == pytest.approx(18 + 2 * size, rel=0.1)
        assert pipeline.core.expected_ms() == pytest.approx(20, rel=0.1)
        believed_ms = pipeline.stages[0].batch_profile.latency_ms
        np.testing.assert_allclose(believed_ms, [20, 22, 24, 26], rtol=0.1)


@pytest.mark.slow
async def test_a_policy_is_solved_for_the_objective_that_a_plan_gives_its_stage():
    profile = Profile("m", "d", [1.0, 1.1], np.array([9.0, 10.0]))
    stage = Stage(Batched, place="thread", batch_size=2, policy="smdp", profile=profile)
    async with Pipeline([stage]) as pipeline:
        core = pipeline.core.stages[0]
        pipeline.use_objective("batched", Weights())  # as at the start
        pipeline.use_objective("batched", ServiceLevelObjective(500.0, 99.0))
        await until(lambda: core.policies.lookup(100.0).control_limit == 2)


async def test_what_fails_once_is_checked_again(monkeypatch):
    monkeypatch.setattr(stage_workers, "_CHECK_S", 0.001)
    monkeypatch.setattr(stage_workers, "_CHECKS_PER_REFIT", 1)
    checked = Counter[str]()
    async with Pipeline([Stage(shift, "a", place="loop"), Stage(shift, "b", place="loop")]) as p:

        def count(name):
            checked[name] += 1
            if name != "b":
                raise OSError("no descriptor left")

        monkeypatch.setattr(p._workers._workers[0], "check", lambda now_s: count("a"))
        monkeypatch.setattr(p._workers._workers[1], "check", lambda now_s: count("b"))
        monkeypatch.setattr(p._workers, "refit", lambda: count("refit"))
        await until(lambda: min(checked["a"], checked["b"], checked["refit"]) > 2)
