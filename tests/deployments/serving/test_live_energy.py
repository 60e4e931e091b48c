import asyncio
from typing import Any

import numpy as np
import pytest

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.control.energy_refit import EnergyRefit
from deployments.control.model_corrections import REVISE_EVERY
from deployments.observability.replica_instruments import REPLICA_INSTRUMENTS
from deployments.serving.service_loading import load_service
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from tests.support.models.emulated_service import emulated_service, infer

STATED = {
    "max_batch_size": 8,
    "latency_ms": {"per_request": 0.5, "fixed": 2.0},
    "energy_mj": {"per_request": 20.0, "fixed": 60.0},
    "idle_power_w": 10.0,
}
DEVICE = Profile.from_dict(STATED)


@pytest.mark.slow
async def test_a_replica_that_measures_its_own_profile_saves_energy_by_default():
    options: dict[str, Any] = {"profile": STATED, "measured": True}
    config = ModelConfig(name="m", import_path="emulated", options=options, max_batch_size=8)
    service = await asyncio.to_thread(load_service, config)
    try:
        await service.configure(parse_user_config({}))
        profile = service.controller.profile
        assert profile.energy_mj is not None
        above_idle_mj = DEVICE.energy_mj_for_weight(1.0)
        np.testing.assert_allclose(profile.energy_mj_for_weight(1.0), above_idle_mj, rtol=0.05)
        assert profile.idle_power_w == pytest.approx(10.0, rel=0.05)
        model = service.controller.user_config.service_model(profile)
        assert isinstance(model.objective, ServiceLevelObjective)
        assert "emulated" in service.explain()["device"]["energy_meter"]
    finally:
        await service.close()


async def test_the_profile_follows_the_meter_and_the_power_is_reported():
    wrong = Profile.from_dict({**STATED, "energy_mj": {"per_request": 10.0, "fixed": 50.0}})
    async with emulated_service(wrong, device=DEVICE) as service:
        for _ in range(2 * REVISE_EVERY * EnergyRefit.MIN_TICKS):
            await asyncio.gather(*(infer(service) for _ in range(8)))
            seen = await service.tick()
            if service.controller.profile.energy_mj[0] != wrong.energy_mj[0]:
                break
        before, after = (one.energy_mj_for_weight(1.0)[-1] for one in (wrong, DEVICE))
        refitted = service.controller.profile.energy_mj_for_weight(1.0)[-1]
        assert abs(refitted - after) < 0.5 * abs(before - after)
        report = service.explain()
        assert report["power_w"]["measured"] > 10.0
        assert report["device"]["energy_j"] > 0
        read = {made.name: list(made.read(service, seen)) for made in REPLICA_INSTRUMENTS}
        assert (("measured",), report["power_w"]["measured"]) in read["sojourn_power_watts"]
