from typing import Any

import pytest

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.control.last_good_config import LastGoodConfig, apply_user_config
from deployments.models.emulated import Emulated
from deployments.serving.service import InferenceService
from policy.errors import InvalidInputError
from policy.profile import Profile
from tests.support.autoscaling.stores import Store

PROFILE = Profile.from_dict({"max_batch_size": 4, "latency_ms": {"per_request": 1, "fixed": 2}})
GOOD: dict[str, Any] = {"sla": {"response_time_ms": 50, "percentile": 95}}
WRONG: dict[str, Any] = {"sla": {"response_time_ms": -1}}
#: Valid for itself, but a batch of one takes 3 ms.
OUT_OF_REACH: dict[str, Any] = {"sla": {"response_time_ms": 2}, "policy": {"objective": "sla"}}


def last_good(store: Store, model="m"):
    return LastGoodConfig("app", "Replica", model, store.kept.get, store.save)


async def apply(service: InferenceService, content, store: Store):
    await apply_user_config(service, content, last_good(store), parse_user_config)


def starting_service():
    config = ModelConfig(name="m", import_path="emulated", max_batch_size=4)
    return InferenceService(config, Emulated(PROFILE.to_dict()), PROFILE)


@pytest.mark.parametrize("wrong", [WRONG, OUT_OF_REACH])
async def test_a_starting_replica_takes_the_last_good_config_and_says_so(wrong):
    store = Store()
    running, starting = starting_service(), starting_service()
    try:
        await apply(running, GOOD, store)
        assert running.config_error is None
        await apply(running, wrong, store)
        await apply(starting, wrong, store)
        for service in (running, starting):
            assert service.explain()["sla_in_words"] == "95% of requests within 50 ms"
            assert service.config_error is not None
        assert starting.config_error.endswith("; the last good user_config is in force")
        await apply(starting, GOOD, store)
        assert starting.config_error is None
    finally:
        await running.close()
        await starting.close()


async def test_without_a_good_config_of_its_model_a_replica_does_not_start():
    store, service = Store(), starting_service()
    last_good(store, "another").keep(GOOD)
    with pytest.raises(InvalidInputError, match="response_time_ms"):
        await apply(service, WRONG, store)
    assert not service.configured
    assert len(store.kept) == 1
