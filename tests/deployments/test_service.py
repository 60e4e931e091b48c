"""The service behind the HTTP face: what it follows, tick by tick."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from deployments.config import ModelConfig, parse_user_config
from deployments.control.policy_controller import REVISE_EVERY
from deployments.errors import BusyError, DeviceError
from deployments.http.inference_protocol import InferenceRequest, RequestedOutput
from deployments.models.emulated import Emulated
from deployments.service import BATCHES_SHOWN, InferenceService, load_service
from policy.errors import InfeasibleError, InvalidInputError
from policy.profile import Profile

TRUE = {"max_batch_size": 4, "latency_ms": {"per_request": 1.0, "fixed": 3.0}}


@contextlib.asynccontextmanager
async def serving(
    profile: Profile, device: Profile | None = None, **user_config: Any
) -> AsyncIterator[InferenceService]:
    """An emulated device, and a service that believes `profile` of it."""
    model = Emulated(device.to_dict() if device else TRUE)
    config = ModelConfig(name="m", import_path="emulated", max_batch_size=4)
    service = InferenceService(config, model, profile)
    try:
        await service.configure(parse_user_config(user_config))
        yield service
    finally:
        await service.close()


async def ask(service: InferenceService, **more: Any) -> None:
    (output,) = Emulated.outputs
    request = InferenceRequest(
        {"input": np.ones((1, 1), np.float32)}, 1, (RequestedOutput(output, False),), None, **more
    )
    await service.infer(request, time.monotonic())


@pytest.mark.parametrize("factor", [0.5, 2.0])
async def test_a_profile_that_is_wrong_by_two_is_mended_and_reported(factor: float) -> None:
    believed = Profile.from_dict(
        {
            "max_batch_size": 4,
            "latency_ms": [factor * (3.0 + size) for size in range(1, 5)],
        }
    )
    async with serving(believed) as service:
        for _ in range(20):
            await asyncio.gather(*(ask(service) for _ in range(4)))
        for _ in range(2 * REVISE_EVERY):
            await service.tick()
        assert service.controller.profile_revisions == 1
        assert service.explain()["profile_revisions"] == 1
        # The machine may be late, the emulated device never is early.
        assert 3.9 <= service.controller.profile.latency_ms[0] < 7.0
        limits = service.batcher.core.limits
        assert limits.latency_ms == service.controller.profile.latency_ms.tolist()


async def test_a_right_profile_stays() -> None:
    async with serving(Profile.from_dict(TRUE)) as service:
        await asyncio.gather(*(ask(service) for _ in range(8)))
        for _ in range(2 * REVISE_EVERY):
            await service.tick()
        assert service.controller.profile_revisions == 0


async def test_waits_are_cut_while_too_many_are_late() -> None:
    sla = {"response_time_ms": 0.5, "percentile": 50}
    profile = Profile("m", "d", np.full(4, 0.1))
    async with serving(profile, sla=sla, policy={"objective": "weights"}) as service:
        for _ in range(12):
            await asyncio.gather(*(ask(service) for _ in range(4)))
            await service.tick()
        assert service.batcher.core.wait_factor < 1.0
        assert service.explain()["wait_factor"] < 1.0


async def test_what_was_observed_is_handed_over_once() -> None:
    async with serving(Profile.from_dict(TRUE)) as service:
        await asyncio.gather(*(ask(service) for _ in range(4)))
        seen = await service.tick()
        assert len(seen.response_times_s) == 4
        assert sum(record.size for record in seen.batches) == 4
        again = await service.tick()
        assert (again.batches, again.response_times_s) == ([], [])


async def test_the_solved_table_is_swapped_in() -> None:
    sla = {"response_time_ms": 50, "percentile": 99}
    profile = Profile.from_dict({**TRUE, "energy_mj": {"per_request": 1, "fixed": 9}})
    async with serving(profile, sla=sla) as service:
        assert service.explain()["control_limit"] == 1
        before = service.batcher.core.table
        while service.explain()["table"] == "solving":
            await asyncio.sleep(0.01)
        assert service.batcher.core.table != before
        assert service.explain()["config_error"] is None
        await ask(service)


async def test_an_impossible_sla_is_refused_and_what_was_in_force_stays() -> None:
    profile = Profile.from_dict({**TRUE, "energy_mj": {"per_request": 1, "fixed": 9}})
    async with serving(profile) as service:
        impossible = parse_user_config({"sla": {"response_time_ms": 2, "percentile": 99}})
        with pytest.raises(InfeasibleError, match="less than a batch of one takes"):
            await service.configure(impossible)
        assert service.explain()["sla"]["response_time_ms"] == 100
        await ask(service)


def test_a_profile_beyond_the_cap_is_refused() -> None:
    config = ModelConfig(
        name="m", import_path="emulated", max_batch_size=2, options={"profile": TRUE}
    )
    with pytest.raises(InvalidInputError, match="goes to batch size 4, max_batch_size is 2"):
        load_service(config)


async def test_a_device_that_hangs_makes_the_replica_unhealthy_and_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deployments.service.STUCK_AFTER_S", 0.0)
    monkeypatch.setattr("deployments.service.STUCK_AFTER_BATCHES", 0)
    async with serving(Profile.from_dict(TRUE)) as service:
        assert service.ready
        asking = [asyncio.create_task(ask(service)) for _ in range(3)]
        await asyncio.sleep(0)
        assert service.stuck()
        assert not service.ready
        await service.tick()
        for task in asking:
            with pytest.raises(DeviceError, match="does not answer"):
                await task
        with pytest.raises(DeviceError, match="does not answer"):
            service.has_room()
        await asyncio.sleep(0.01)
        assert not service.ready, "a replica that hung is replaced, though its batch ended"
        assert service.answers[503] == 4


async def test_the_last_batches_are_explained() -> None:
    async with serving(Profile.from_dict(TRUE), policy={"objective": "weights"}) as service:
        for _ in range(BATCHES_SHOWN):
            await ask(service)
        await asyncio.gather(*(ask(service) for _ in range(4)))
        batches = service.explain()["last_batches"]
    assert len(batches) == BATCHES_SHOWN
    newest, oldest = batches[0], batches[-1]
    assert (newest["size"], oldest["size"]) == (3, 1)
    assert (newest["reason"], newest["queue_length_left"], newest["failed"]) == ("limit", 0, False)
    # The three had waited for the one that came with them.
    assert newest["oldest_wait_ms"] >= 3.9
    assert newest["duration_ms"] >= 5.9
    assert newest["ended_s_ago"] <= oldest["ended_s_ago"]


async def test_draining_answers_what_was_accepted_within_its_time() -> None:
    async with serving(Profile.from_dict(TRUE)) as service:
        asking = [asyncio.create_task(ask(service)) for _ in range(9)]
        await asyncio.sleep(0)
        assert await service.drain(timeout_s=10.0)
        assert all(task.done() for task in asking)
        assert service.batcher.completed_rows == 9
        with pytest.raises(BusyError):
            await ask(service)


async def test_draining_ends_where_the_device_does_not(caplog: pytest.LogCaptureFixture) -> None:
    slow = Profile.from_dict({"max_batch_size": 1, "latency_ms": [200.0]})
    async with serving(slow, device=slow) as service:
        asking = [asyncio.create_task(ask(service)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not await service.drain(timeout_s=0.01)
        assert "1 rows were not answered within 0.01 s" in caplog.text
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
