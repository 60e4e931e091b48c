import asyncio
import contextlib
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.config.replica_args import ExpertModelConfig
from deployments.errors import BusyError, DeviceError
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.signature import RequestedOutput
from deployments.modelstore.errors import StoreFullError, UnknownModelError
from policy.errors import InfeasibleError
from tests.support.models.hosted_models import Multiplier, config_of, hosted, user_config
from tests.support.waiting import LIMIT_S, until


async def ask(models, name, version=None):
    """Return what a model answers to 1, which is the number of the version that answered."""
    with models.repository.using(name, version) as service:
        (codec,) = service.signature.output_codecs.values()
        inputs = {"x": np.ones((1, 1), np.float32)}
        request = InferenceRequest(inputs, 1, (RequestedOutput(codec, False),), None)
        outputs = await service.infer(request, asyncio.get_running_loop().time())
        return float(outputs["y"][0, 0])


async def test_a_new_version_takes_over_and_the_old_one_answers_what_it_has():
    async with hosted("a") as models:
        models.batch_gates["a", "2"] = threading.Event()
        await models.repository.load(config_of("a", "2"))
        held = asyncio.create_task(ask(models, "a"))
        second = models.repository.first
        await until(lambda: second.batcher.busy_for_s() > 0)
        await models.repository.load(config_of("a", "3"))
        assert await ask(models, "a") == 3
        await until(lambda: models.states("a") == {"2": "UNLOADING", "3": "READY"})
        assert not held.done()
        models.batch_gates["a", "2"].set()
        assert await held == 2
        await until(lambda: models.states("a") == {"3": "READY"})


async def test_loads_of_one_version_are_shared_and_those_of_others_run_beside_it():
    async with hosted("a", "b", start=False) as models:
        models.load_gates["b", "1"] = threading.Event()
        slow = [asyncio.create_task(models.repository.load(config_of("b"))) for _ in range(3)]
        await until(lambda: ("b", "1") in models.loads)
        assert models.states("b") == {"1": "LOADING"}
        with pytest.raises(BusyError, match="loading"):
            await ask(models, "b")
        await models.repository.load(config_of("a", "2"))
        assert await ask(models, "a") == 2
        models.load_gates["b", "1"].set()
        await asyncio.gather(*slow)
        assert models.loads.count(("b", "1")) == 1
        assert await ask(models, "b") == 1


async def test_a_load_that_fails_leaves_what_serves_and_can_be_tried_again():
    async with hosted("a") as models:
        models.errors["a", "2"] = [UnknownModelError("a@2: not there")]
        with pytest.raises(UnknownModelError):
            await models.repository.load(config_of("a", "2"))
        assert models.states("a") == {"1": "READY", "2": "UNAVAILABLE"}
        assert [row["reason"] for row in models.repository.index()] == ["", "a@2: not there"]
        assert await ask(models, "a") == 1
        await models.repository.load(config_of("a", "2"))
        assert await ask(models, "a") == 2


async def test_a_client_that_leaves_does_not_stop_a_load():
    async with hosted("a") as models:
        models.load_gates["a", "2"] = threading.Event()
        client = asyncio.create_task(models.repository.load(config_of("a", "2")))
        await until(lambda: ("a", "2") in models.loads)
        client.cancel()
        models.load_gates["a", "2"].set()
        await until(lambda: models.repository.first.model_version == "2")


@settings(max_examples=15)
@given(
    st.lists(st.sampled_from(["1", "2", "3", "4"]), min_size=1, max_size=6),
    st.permutations(["2", "3", "4"]),
)
def test_the_version_wanted_last_serves_in_whatever_order_loads_end(wanted, order):
    """Version 1 serves already, and 4 cannot be loaded."""

    async def check():
        async with hosted("a") as models:
            models.errors["a", "4"] = [MemoryError("no room")]
            for version in order:
                models.load_gates["a", version] = threading.Event()
            loads = []
            for version in wanted:
                loads.append(asyncio.create_task(models.repository.load(config_of("a", version))))
                await asyncio.sleep(0)
            for version in order:
                models.load_gates["a", version].set()
                mine = [load for load, one in zip(loads, wanted, strict=True) if one == version]
                await asyncio.gather(*mine, return_exceptions=True)
            ends = await asyncio.gather(*loads, return_exceptions=True)
            assert [isinstance(end, MemoryError) for end in ends] == [one == "4" for one in wanted]
            serves = "1" if wanted[-1] == "4" else wanted[-1]
            assert await ask(models, "a") == float(serves)
            await until(lambda: list(models.states("a").values()).count("UNLOADING") == 0)
            assert models.states("a")[serves] == "READY"
            assert sorted(models.loads) == [("a", one) for one in sorted({"1", *wanted})]

    asyncio.run(check())


@contextlib.asynccontextmanager
async def retiring(**changes):
    """Six requests of a version that another one has replaced, whose device hangs meanwhile."""
    async with hosted("a") as models:
        models.batch_gates["a", "2"] = threading.Event()
        await models.repository.load(config_of("a", "2").model_copy(update=changes))
        asking = [asyncio.create_task(ask(models, "a")) for _ in range(6)]
        second = models.repository.first
        await until(lambda: second.batcher.busy_for_s() > 0)
        await models.repository.load(config_of("a", "3"))
        yield models, second, asking


async def refused(asking):
    async with asyncio.timeout(LIMIT_S):
        ends = await asyncio.gather(*asking, return_exceptions=True)
    return {type(end) for end in ends}


async def test_a_replaced_version_that_hangs_answers_that_it_does():
    async with retiring(expert=ExpertModelConfig(hang_after_s=0.01)) as (models, second, asking):
        while not all(task.done() for task in asking):
            await models.repository.tick()
            await asyncio.sleep(0.001)
        assert await refused(asking) == {DeviceError}
        await until(lambda: models.states("a") == {"3": "READY"})
        # Its thread may still compute with what would be given back.
        assert "_gate" in vars(second._model)


async def test_a_version_that_is_closed_in_use_leaves_no_request_without_an_answer(monkeypatch):
    monkeypatch.setattr("deployments.hosting.repository.RETIRE_TIMEOUT_S", 0.01)
    async with retiring() as (models, _, asking):
        assert await refused(asking) == {DeviceError}
        await until(lambda: models.states("a") == {"3": "READY"})


async def test_a_full_store_costs_the_model_that_is_idle_for_longest_and_none_in_use():
    async with hosted("a", "b", "c", "d", on_demand=True) as models:
        for name in "bc":
            await models.repository.load(config_of(name))
        models.errors["d", "1"] = [StoreFullError("d: needs 5 bytes")] * 2
        using = models.repository.using
        with using("b"), using("c"), pytest.raises(StoreFullError):
            await models.repository.load(config_of("d"))
        await ask(models, "b")
        await models.repository.load(config_of("d"))
        assert models.versions() == {"a": "1", "b": "1", "d": "1"}
        assert models.states("c") == {"1": "UNAVAILABLE"}
        with pytest.raises(BusyError, match="not loaded"):
            await ask(models, "c")


#: A batch of one takes 0.6 ms.
OUT_OF_REACH = {"sla": {"response_time_ms": 0.6, "percentile": 95}, "policy": {"objective": "sla"}}


async def test_a_config_that_does_not_suit_one_model_changes_none():
    async with hosted("a", "b") as models:
        wrong = user_config(a={"sla": {"response_time_ms": 200, "percentile": 99}}, b=OUT_OF_REACH)
        with pytest.raises(InfeasibleError):
            await models.repository.configure(wrong)
        for service in models.repository.services:
            assert service.controller.user_config.sla.response_time_ms == 50


async def test_weights_that_are_not_served_after_all_are_given_back(monkeypatch):
    given_back = []
    monkeypatch.setattr(Multiplier, "unload", lambda model: given_back.append(model._factor))
    async with hosted("a", "b", start=False) as models:
        models.load_gates["b", "2"] = threading.Event()
        superseded = asyncio.create_task(models.repository.load(config_of("b", "2")))
        await until(lambda: ("b", "2") in models.loads)
        await models.repository.load(config_of("b", "3"))
        models.load_gates["b", "2"].set()
        await superseded
        assert given_back == [2]
    async with hosted("a", "b", start=False) as models:
        await models.repository.configure(user_config(b=OUT_OF_REACH))
        with pytest.raises(InfeasibleError):
            await models.repository.load(config_of("b", "4"))
        assert given_back == [2, 4]
