"""What the autoscaler is told of a replica: the rate it takes, and how it fares."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.reports import ReplicaReport
from deployments.config import ModelConfig, parse_user_config
from deployments.control import table_solver as solver
from deployments.http.inference_protocol import InferenceRequest, RequestedOutput
from deployments.models.emulated import Emulated
from deployments.service import InferenceService
from policy.load_lateness import solve_load_lateness_curve
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

PROFILE = Profile.from_dict({"max_batch_size": 4, "latency_ms": {"per_request": 1.0, "fixed": 3.0}})


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_folder", lambda: tmp_path)


@contextlib.asynccontextmanager
async def serving(**user_config: Any) -> AsyncIterator[InferenceService]:
    model = Emulated(PROFILE.to_dict())
    config = ModelConfig(name="m", import_path="emulated", max_batch_size=4)
    service = InferenceService(config, model, PROFILE)
    try:
        await service.configure(parse_user_config(user_config))
        yield service
    finally:
        await service.close()


def told(service: InferenceService) -> ReplicaReport:
    return ReplicaReport.from_floats("a", 1.0, service.autoscaling_stats())


async def solved(service: InferenceService) -> ReplicaReport:
    async with asyncio.timeout(60):
        while service.explain()["table"] == "solving":
            await asyncio.sleep(0.01)
    return told(service)


def expected(response_time_ms: float, percentile: float) -> float:
    room = 4 * max(1, int(response_time_ms / 7.0) - 1)
    # Half a millisecond is for the way there and back.
    objective = ServiceLevelObjective(response_time_ms - 0.5, percentile)
    return solve_load_lateness_curve(PROFILE, objective, room).sla_rate_per_s


async def test_the_rate_under_the_sla_is_told_when_it_is_solved() -> None:
    async with serving(sla={"response_time_ms": 20, "percentile": 95}) as service:
        assert told(service).curve is None
        report = await solved(service)
        assert report.sla_rate_per_s == pytest.approx(expected(20, 95))
        assert service.explain()["sla_rate_per_s"] == report.sla_rate_per_s


async def test_a_changed_sla_is_told_together_with_its_rate() -> None:
    """A rate of another SLA, or none, would have the autoscaler order for what is not asked."""
    async with serving(sla={"response_time_ms": 20, "percentile": 95}) as service:
        before = await solved(service)
        changed = {"sla": {"response_time_ms": 15, "percentile": 99}}
        await service.configure(parse_user_config(changed))
        assert told(service).objective == before.objective
        assert told(service).curve == before.curve
        after = await solved(service)
        assert after.objective == ServiceLevelObjective(15, 99)
        assert after.sla_rate_per_s == pytest.approx(expected(15, 99))
        assert after.sla_rate_per_s < before.sla_rate_per_s


async def test_changed_delays_and_rooms_change_the_rate() -> None:
    sla = {"response_time_ms": 15, "percentile": 95}
    async with serving(sla=sla) as service:
        before = await solved(service)
        slow_way = {"sla": sla, "autoscaler": {"request_delay_ms": 3.0}}
        await service.configure(parse_user_config(slow_way))
        assert (await solved(service)).sla_rate_per_s < before.sla_rate_per_s
        small_room = {"sla": sla, "limits": {"waiting_room": 1}}
        await service.configure(parse_user_config(small_room))
        assert (await solved(service)).sla_rate_per_s < before.sla_rate_per_s


async def test_an_sla_that_no_rate_meets_is_told() -> None:
    # A lone request is answered in 4 ms, but who comes just after it began waits for two batches.
    async with serving(
        sla={"response_time_ms": 4.6, "percentile": 99.9}, policy={"response_time_share": 1.0}
    ) as service:
        report = await solved(service)
        assert report.curve is None
        assert report.out_of_reach


async def test_late_answers_are_counted_in_rows() -> None:
    (output,) = Emulated.outputs

    async def ask(service: InferenceService, rows: int) -> None:
        inputs = {"input": np.ones((rows, 1), np.float32)}
        request = InferenceRequest(inputs, rows, (RequestedOutput(output, False),), None)
        await service.infer(request, time.monotonic())

    async with serving(sla={"response_time_ms": 20_000}) as service:
        await ask(service, 3)
        assert (told(service).answered_total, told(service).late_total) == (3, 0)
    async with serving(sla={"response_time_ms": 7.4}, limits={"waiting_room": 99}) as service:
        # Six rows take two batches: 7 ms and 5 ms.
        await asyncio.gather(ask(service, 4), ask(service, 2))
        assert told(service).answered_total == 6
        assert told(service).late_total >= 2
