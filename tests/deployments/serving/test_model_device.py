import asyncio
import time

import numpy as np
import pytest

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.errors import DeviceError
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.signature import RequestedOutput
from deployments.models.emulated import Emulated
from deployments.serving.model_device import COMPILING_AFTER_S
from deployments.serving.service import InferenceService
from policy.profile import Profile
from tests.support.models.doubles_service import Doubles
from tests.support.models.emulated_service import (
    emulated_service,
    end_device_thread,
    infer,
    until_busy,
)

LATENCY = {"max_batch_size": 4, "latency_ms": {"per_request": 1.0, "fixed": 3.0}}
PROFILE = Profile.from_dict(LATENCY)


async def test_a_device_that_hangs_makes_the_replica_unhealthy_and_answers_its_requests(
    monkeypatch,
):
    monkeypatch.setattr("deployments.serving.model_device.STUCK_AFTER_S", 0.0)
    monkeypatch.setattr("deployments.serving.model_device.STUCK_AFTER_BATCHES", 0)
    async with emulated_service(PROFILE) as service:
        assert service.ready
        asking = [asyncio.create_task(infer(service)) for _ in range(3)]
        await until_busy(service)
        assert service.stuck()
        assert not service.ready
        await service.tick()
        for task in asking:
            with pytest.raises(DeviceError, match="does not answer"):
                await task
        with pytest.raises(DeviceError, match="does not answer"):
            service.admit(time.monotonic(), time.monotonic())
        await end_device_thread(service.batcher)
        assert not service.ready, "a replica that hung is replaced even if its batch ends"


@pytest.mark.parametrize(
    ("sizes", "hang_after_s", "hangs"),
    [({1}, 0.0001, False), (set(), 0.0001, True), (set(), 60.0, False)],
)
async def test_what_counts_as_a_hang_is_configured_and_a_first_compile_is_none(
    sizes, hang_after_s, hangs
):
    config = ModelConfig(
        name="m", import_path="emulated", max_batch_size=4, expert={"hang_after_s": hang_after_s}
    )
    slow = Profile("m", "d", np.full(4, 200.0))
    service = InferenceService(config, Emulated(slow.to_dict()), slow, not_run=sizes)
    try:
        await service.configure(parse_user_config({"limits": {"late": "serve"}}))
        asking = asyncio.create_task(infer(service))
        await until_busy(service)
        time.sleep(0.001)
        assert service.stuck() == hangs
        assert service.longest_batch_s == (COMPILING_AFTER_S if sizes else hang_after_s)
        await asking
    finally:
        await service.close()


@pytest.mark.parametrize(
    ("device", "waits", "sla_ms", "largest"),
    [("cpu", False, 100, 4), ("cpu", True, 100, 0), ("cuda", False, 100, 0), ("cpu", False, 2, 2)],
)
async def test_the_event_loop_runs_short_batches_of_models_that_compute_on_its_cpu(
    device, waits, sla_ms, largest
):
    short = Profile("m", "d", np.array([0.06, 0.07, 0.09, 0.11]))
    config = ModelConfig(name="m", import_path="unused:Unused", max_batch_size=4)
    model = Doubles()
    model.waits = waits
    service = InferenceService(config, model, short, device=device, cpus=2.0)
    sla, limits = {"response_time_ms": sla_ms}, {"late": "serve"}
    await service.configure(parse_user_config({"sla": sla, "limits": limits}))
    assert service.explain()["largest_batch_on_event_loop"] == largest
    assert service.shares_cpu == (largest == 4)
    service.device.cpus = 1.0
    assert service.shares_cpu == (device == "cpu" and not waits)
    (output,) = Doubles.outputs
    inputs = {"x": np.ones((1, 2), np.float32)}
    request = InferenceRequest(inputs, 1, (RequestedOutput(output, False),), None)
    outputs = await service.infer(request, time.monotonic())
    assert outputs["y"].tolist() == [[2, 2]]
    assert service.explain()["last_batches"][0]["on_event_loop"] == (largest > 0)
    await service.close()
