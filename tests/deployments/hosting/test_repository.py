"""Versions take over without a request failing; loads run side by side and are shared."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest

from deployments.config.replica_args import ExpertModelConfig
from deployments.errors import BusyError, DeadlineError, DeviceError, NotFoundError
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.signature import RequestedOutput
from deployments.modelstore.errors import StoreFullError, UnknownModelError
from policy.errors import InfeasibleError, InvalidInputError
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


def states(models, name):
    rows = [row for row in models.repository.index() if row["name"] == name]
    return {row["version"]: row["state"] for row in rows}


async def test_models_are_loaded_at_the_start_and_found_by_name_and_version():
    async with hosted("a", "b") as models:
        assert await ask(models, "a") == await ask(models, "b", "1") == 1
        assert [service.model_name for service in models.repository.services] == ["a", "b"]
        with pytest.raises(NotFoundError, match="'a', 'b'"), models.repository.using("c"):
            pass
        with pytest.raises(NotFoundError, match="its version is '1'"):
            await ask(models, "b", "2")


async def test_a_new_version_takes_over_and_the_old_one_answers_what_it_has():
    async with hosted("a") as models:
        models.batch_gates["a", "2"] = threading.Event()
        await models.repository.load(config_of("a", "2"))
        held = asyncio.create_task(ask(models, "a"))
        second = models.repository.first
        await until(lambda: second.batcher.busy_for_s() > 0)
        await models.repository.load(config_of("a", "3"))
        assert await ask(models, "a") == 3
        await until(lambda: states(models, "a") == {"2": "UNLOADING", "3": "READY"})
        assert not held.done()
        models.batch_gates["a", "2"].set()
        assert await held == 2
        await until(lambda: states(models, "a") == {"3": "READY"})


async def test_requests_never_fail_while_versions_change():
    answers = []

    async def keep_asking():
        while True:
            answers.append(await ask(models, "a"))

    async with hosted("a") as models:
        clients = [asyncio.create_task(keep_asking()) for _ in range(4)]
        for version in range(2, 8):
            await models.repository.load(config_of("a", str(version)))
            assert await ask(models, "a") == version
        for client in clients:
            client.cancel()
        done = await asyncio.gather(*clients, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in done)
    assert set(answers) <= set(map(float, range(1, 8)))
    assert len(answers) > 20


async def test_loads_of_one_version_are_shared_and_those_of_others_run_beside_it():
    async with hosted("a", "b", start=False) as models:
        models.load_gates["b", "1"] = threading.Event()
        slow = [asyncio.create_task(models.repository.load(config_of("b"))) for _ in range(3)]
        await until(lambda: ("b", "1") in models.loads)
        assert states(models, "b") == {"1": "LOADING"}
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
        assert states(models, "a") == {"1": "READY", "2": "UNAVAILABLE"}
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


async def test_the_later_of_two_loads_serves_whichever_ends_first():
    async with hosted("a") as models:
        models.load_gates["a", "2"] = threading.Event()
        earlier = asyncio.create_task(models.repository.load(config_of("a", "2")))
        await until(lambda: ("a", "2") in models.loads)
        await models.repository.load(config_of("a", "3"))
        models.load_gates["a", "2"].set()
        await earlier
        assert await ask(models, "a") == 3
        await until(lambda: states(models, "a") == {"3": "READY"})


async def test_going_back_while_a_version_loads_keeps_what_serves():
    async with hosted("a") as models:
        models.load_gates["a", "2"] = threading.Event()
        loading = asyncio.create_task(models.repository.load(config_of("a", "2")))
        await until(lambda: ("a", "2") in models.loads)
        assert await models.repository.load(config_of("a", "1"))
        models.load_gates["a", "2"].set()
        assert not await loading
        assert await ask(models, "a") == 1
        assert states(models, "a") == {"1": "READY"}


async def test_a_load_that_was_given_up_is_shared_if_it_is_wanted_again():
    async with hosted("a") as models:
        models.load_gates["a", "2"] = threading.Event()
        first = asyncio.create_task(models.repository.load(config_of("a", "2")))
        await until(lambda: ("a", "2") in models.loads)
        await models.repository.load(config_of("a", "1"))
        again = asyncio.create_task(models.repository.load(config_of("a", "2")))
        await asyncio.sleep(0)
        models.load_gates["a", "2"].set()
        assert await first
        assert await again
        assert await ask(models, "a") == 2
        assert models.loads == [("a", "1"), ("a", "2")]


async def test_a_load_that_fails_does_not_give_up_a_later_one():
    async with hosted("a") as models:
        models.load_gates["a", "2"] = threading.Event()
        models.errors["a", "2"] = [MemoryError("no room")]
        earlier = asyncio.create_task(models.repository.load(config_of("a", "2")))
        await until(lambda: ("a", "2") in models.loads)
        models.load_gates["a", "3"] = threading.Event()
        later = asyncio.create_task(models.repository.load(config_of("a", "3")))
        await until(lambda: ("a", "3") in models.loads)
        models.load_gates["a", "2"].set()
        with pytest.raises(MemoryError):
            await earlier
        models.load_gates["a", "3"].set()
        assert await later
        assert await ask(models, "a") == 3


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
    expert = ExpertModelConfig(hang_after_s=0.01)
    async with retiring(expert=expert) as (models, second, asking):
        while not all(task.done() for task in asking):
            await models.repository.tick()
            await asyncio.sleep(0.001)
        assert await refused(asking) == {DeviceError}
        await until(lambda: states(models, "a") == {"3": "READY"})
        # Its thread may still compute with what would be given back.
        assert "_gate" in vars(second._model)


async def test_a_replaced_version_gives_requests_up_whose_time_is_over():
    async with retiring() as (models, second, asking):
        second._max_timeout_ms = 1e-6
        await models.repository.tick()
        assert await refused(asking) == {DeadlineError}


async def test_a_version_that_is_closed_in_use_leaves_no_request_without_an_answer(monkeypatch):
    monkeypatch.setattr("deployments.hosting.repository.RETIRE_TIMEOUT_S", 0.01)
    async with retiring() as (models, _, asking):
        assert await refused(asking) == {DeviceError}
        await until(lambda: states(models, "a") == {"3": "READY"})


async def test_a_replica_that_stops_answers_for_all_versions():
    async with retiring() as (models, _, asking):
        models.batch_gates["a", "4"] = threading.Event()
        await models.repository.load(config_of("a", "4"))
        fourth = asyncio.create_task(ask(models, "a"))
        await until(lambda: models.repository.first.batcher.busy_for_s() > 0)
        await models.repository.close(0.01)
        assert await refused([*asking, fourth]) == {DeviceError}


async def test_a_client_that_leaves_does_not_cut_an_unload_short():
    async with hosted("a", "b") as models:
        gate = models.batch_gates["b", "2"] = threading.Event()
        await models.repository.load(config_of("b", "2"))
        held = asyncio.create_task(ask(models, "b"))
        await until(lambda: models.repository.services[1].batcher.busy_for_s() > 0)
        client = asyncio.create_task(models.repository.unload("b"))
        await asyncio.sleep(0)
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        gate.set()
        assert await held == 2
        await until(lambda: states(models, "b") == {"2": "UNAVAILABLE"})


async def test_an_unloaded_model_answers_what_it_has_and_then_is_gone():
    async with hosted("a", "b", start=False) as models:
        models.batch_gates["b", "1"] = threading.Event()
        await models.repository.load(config_of("b"))
        held = asyncio.create_task(ask(models, "b"))
        await until(lambda: models.repository.services[1].batcher.busy_for_s() > 0)
        gone = asyncio.create_task(models.repository.unload("b"))
        await asyncio.sleep(0)
        assert states(models, "b") == {"1": "UNLOADING"}
        with pytest.raises(BusyError, match="not loaded"):
            await ask(models, "b")
        models.batch_gates["b", "1"].set()
        assert await held == 1
        await gone
        assert states(models, "b") == {"1": "UNAVAILABLE"}
        with pytest.raises(InvalidInputError, match="first"):
            await models.repository.unload("a")
        await models.repository.load(config_of("b"))
        assert await ask(models, "b") == 1


async def test_a_model_unloaded_while_it_loads_does_not_come_back():
    async with hosted("a", "b", start=False) as models:
        models.load_gates["b", "1"] = threading.Event()
        loading = asyncio.create_task(models.repository.load(config_of("b")))
        await until(lambda: ("b", "1") in models.loads)
        await models.repository.unload("b")
        models.load_gates["b", "1"].set()
        await loading
        assert states(models, "b") == {"1": "UNAVAILABLE"}


async def test_a_full_store_costs_the_model_that_is_idle_for_longest():
    async with hosted("a", "b", "c", "d", on_demand=True) as models:
        for name in "bc":
            await models.repository.load(config_of(name))
        await ask(models, "b")
        models.errors["d", "1"] = [StoreFullError("d: needs 5 bytes")]
        await models.repository.load(config_of("d"))
        assert [service.model_name for service in models.repository.services] == ["a", "b", "d"]


async def test_a_full_store_costs_no_model_that_is_in_use():
    async with hosted("a", "b", "c", on_demand=True) as models:
        await models.repository.load(config_of("b"))
        models.errors["c", "1"] = [StoreFullError("c: needs 5 bytes")]
        with models.repository.using("b"), pytest.raises(StoreFullError):
            await models.repository.load(config_of("c"))
        assert await ask(models, "b") == 1


async def test_a_full_store_costs_no_model_that_would_not_come_back():
    async with hosted("a", "b") as models:
        models.errors["a", "2"] = [StoreFullError("a: needs 5 bytes")]
        with pytest.raises(StoreFullError):
            await models.repository.load(config_of("a", "2"))
        assert await ask(models, "b") == 1


async def test_each_model_has_its_own_sla_and_limits():
    async with hosted("a", "b") as models:
        sla = {"response_time_ms": 200, "percentile": 99}
        await models.reconciler.configure(user_config(b={"sla": sla, "limits": {"late": "serve"}}))
        a, b = models.repository.services
        assert a.controller.user_config.sla.response_time_ms == 50
        assert b.controller.user_config.sla.response_time_ms == 200
        assert a.batcher is not b.batcher
        assert a.access is b.access


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
