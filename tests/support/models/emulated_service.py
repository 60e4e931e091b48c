"""An `InferenceService` in front of an emulated device, for tests without HTTP or Ray."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from deployments.batcher.asyncio_batcher import Batcher
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.signature import RequestedOutput
from deployments.models.emulated import Emulated
from deployments.serving.service import InferenceService
from policy.profile import Profile
from tests.support.waiting import until

#: For `limits`: as without a configuration.
REFUSES = {"late": "refuse"}


@contextlib.asynccontextmanager
async def emulated_service(
    profile: Profile, device: Profile | None = None, **user_config: Any
) -> AsyncIterator[InferenceService]:
    """Run a service whose initial profile is `profile`; its batches really take what `device` says.

    A slow machine must not turn answers into refusals: what is late is served, unless `limits`
    says otherwise.
    """
    device = device or profile
    config = ModelConfig(name="m", import_path="emulated", max_batch_size=device.max_batch_size)
    model = Emulated(device.to_dict())
    service = InferenceService(config, model, profile, energy_meter=model.energy_meter())
    try:
        limits = {"late": "serve", **user_config.get("limits", {})}
        await service.configure(parse_user_config({**user_config, "limits": limits}))
        yield service
    finally:
        await service.close()


async def infer(
    service: InferenceService, rows: int = 1, sent_s_ago: float = 0.0, **options: Any
) -> None:
    """Send a request that arrived `sent_s_ago`; `options` as of `InferenceRequest`."""
    arrival_s = time.monotonic() - sent_s_ago
    await service.infer(one_request(rows, **options), arrival_s)
    service.count_answered(rows, arrival_s)


def one_request(rows: int = 1, **options: Any) -> InferenceRequest:
    """Return a request of ones; `options` as of `InferenceRequest`."""
    (output,) = Emulated.outputs
    inputs = {"input": np.ones((rows, 1), np.float32)}
    return InferenceRequest(inputs, rows, (RequestedOutput(output, False),), None, **options)


async def until_solved(service: InferenceService) -> None:
    """Wait until the policy asked for is solved, or has failed."""
    await until(lambda: service.explain()["table"] != "solving")


async def until_busy(service: InferenceService) -> None:
    """Let the event loop run until a batch is on the device."""
    for _ in range(10):
        if service.batcher.core.device_busy:
            return
        await asyncio.sleep(0)
    raise AssertionError("no batch was started")


async def end_device_thread(batcher: Batcher) -> None:
    """End the device thread after its batch, and let the event loop take the outcome."""
    batcher.close()
    for thread in threading.enumerate():
        if thread.name == "sojourn-device":
            await asyncio.to_thread(thread.join, 10)
    await asyncio.sleep(0)
