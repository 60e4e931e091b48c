import asyncio
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from deployments.batcher.model_runner import BatchRecord
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.control.latency_refit import LatencyRefit
from deployments.control.model_corrections import REVISE_EVERY
from deployments.errors import DeadlineError, DeviceError
from deployments.serving.service_loading import load_service
from policy.batcher.requests import StartReason
from policy.errors import InfeasibleError, InvalidInputError
from policy.profile import Profile
from tests.support.models.emulated_service import (
    REFUSES,
    emulated_service,
    infer,
    until_busy,
)

LATENCY = {"max_batch_size": 4, "latency_ms": {"per_request": 1.0, "fixed": 3.0}}
PROFILE = Profile.from_dict(LATENCY)


async def test_a_profile_that_is_wrong_by_two_is_refitted_and_reported():
    wrong = Profile("m", "d", 0.5 * PROFILE.latency_ms)
    async with emulated_service(wrong) as service:
        for _ in range(2 * REVISE_EVERY):
            for size, latency_ms in enumerate(PROFILE.latency_ms.tolist(), start=1):
                record = BatchRecord(size, StartReason.FULL, 0, 0.0, 1e-3 * latency_ms, False)
                for _ in range(LatencyRefit.MIN_BATCHES):
                    service.observer.batch_ended(record)
            await service.tick()
        profile = service.controller.profile
        np.testing.assert_allclose(profile.latency_ms, PROFILE.latency_ms)
        assert service.controller.corrections.profile_revisions == 1
        assert service.explain()["profile_revisions"] == 1
        assert service.controller.profiled_full_batch_ms == wrong.latency_ms[-1]
        assert service.batcher.core.limits.latency_ms == profile.latency_ms.tolist()


async def test_waits_shrink_while_too_many_answers_are_late():
    sla = {"response_time_ms": 0.5, "percentile": 50}
    profile = Profile("m", "d", np.full(4, 0.1))
    async with emulated_service(
        profile, device=PROFILE, sla=sla, policy={"objective": "weights"}
    ) as service:
        for _ in range(12):
            await asyncio.gather(*(infer(service) for _ in range(4)))
            await service.tick()
        assert service.batcher.core.wait_factor < 1.0
        assert service.explain()["wait_factor"] < 1.0


async def test_the_batch_size_limit_follows_from_the_sla_unless_it_is_set():
    linear = Profile("m", "d", 0.4 + 7.8 * np.arange(1, 33))
    sla = {"response_time_ms": 200}
    async with emulated_service(linear, sla=sla, limits=REFUSES) as service:
        assert service.explain()["batch_size_limit"] == 12
        assert service.autoscaling_stats()["full_batch_size"] == 12
        assert max(service.batcher.core.policy(0.0).actions) == 12
    async with emulated_service(
        linear, sla=sla, limits={"expert": {"batch_size_limit": 3}}
    ) as service:
        assert service.explain()["batch_size_limit"] == 3


def test_a_profile_beyond_the_maximum_batch_size_is_rejected():
    config = ModelConfig(
        name="m",
        import_path="emulated",
        device="cpu",
        max_batch_size=2,
        options={"profile": LATENCY},
    )
    with pytest.raises(InvalidInputError, match="batch size 4, which exceeds max_batch_size 2"):
        load_service(config)


async def test_draining_gives_up_after_its_timeout(caplog):
    async with emulated_service(Profile("m", "d", np.array([1000.0]))) as service:
        asking = [asyncio.create_task(infer(service)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not await service.drain(timeout_s=0.01)
        assert "1 rows were not answered within 0.01 s" in caplog.text
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_a_config_that_does_not_suit_changes_nothing():
    async with emulated_service(PROFILE) as service:
        wrong = {"sla": {"response_time_ms": 3}, "policy": {"objective": "sla"}}
        tracing = {"endpoint": "http://localhost:4318/v1/traces"}
        service.tracing._make_provider = lambda config, model: pytest.fail("it is traced")
        with pytest.raises(InfeasibleError, match="less than a batch of one takes"):
            await service.configure(parse_user_config({**wrong, "tracing": tracing}))
        assert not service.tracing.on
        assert service.controller.user_config.tracing is None
        assert service.explain()["sla"]["response_time_ms"] == 100
        await infer(service)


async def test_closing_answers_what_is_open_and_what_still_comes():
    async with emulated_service(Profile("m", "d", np.array([1000.0]))) as service:
        asking = [asyncio.create_task(infer(service)) for _ in range(3)]
        await until_busy(service)
        await service.close()
        for task in asking:
            with pytest.raises(DeviceError, match="m 1 was closed before it could answer"):
                await task
        with pytest.raises(DeviceError):
            await infer(service)


_POOLS = """
import asyncio, json
from threadpoolctl import threadpool_info
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.models.emulated import Emulated
from deployments.serving.service_loading import load_service
from tests.support.models.emulated_service import infer

pools = []

class Watched(Emulated):
    def forward(self, batch):
        pools.append([pool["num_threads"] for pool in threadpool_info()])
        return super().forward(batch)

async def main():
    options = {"profile": {"max_batch_size": 1, "latency_ms": [1.0]}}
    config = ModelConfig(name="m", import_path="__main__:Watched", device="cpu",
                         max_batch_size=1, options=options)
    service = load_service(config, cpus=1)
    user_config = {"policy": {"objective": "weights"}, "limits": {"late": "serve"}}
    await service.configure(parse_user_config(user_config))
    await infer(service)
    await service.close()

asyncio.run(main())
print(json.dumps(pools))
"""


@pytest.mark.slow
def test_every_thread_that_computes_is_limited_to_the_replicas_cpus():
    """Limits that were set in one thread used not to hold in the device thread: 4 ms a batch."""
    environment = {name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name}
    output = subprocess.run(
        [sys.executable, "-c", _POOLS], env=environment, capture_output=True, check=True, text=True
    ).stdout
    on_main_thread, on_device_thread = json.loads(output)
    assert on_main_thread
    assert set(on_main_thread) == set(on_device_thread) == {1}


async def test_what_is_not_answered_within_the_time_limit_is_given_up_at_a_tick():
    """On the device as well as in the queue; requests without a deadline have no timer."""
    profile = Profile("m", "d", np.array([30.0]))
    limits = {"late": "serve", "expert": {"max_timeout_ms": 60_000}}
    async with emulated_service(profile, limits=limits) as service:
        old = [asyncio.ensure_future(infer(service, sent_s_ago=60.1)) for _ in range(2)]
        young = asyncio.ensure_future(infer(service))
        await until_busy(service)
        await service.tick()
        for task in old:
            with pytest.raises(DeadlineError, match="was not answered in time"):
                await task
        assert service.batcher.core.queue_length == 1
        await young
