import threading

import pytest

from deployments.config.user_config import parse_user_config
from deployments.control.last_good_config import LastGoodConfig, apply_user_config
from deployments.hosting.failed_loads import PAUSE_S
from deployments.modelstore.errors import FetchError, StoreFullError, UnknownModelError
from policy.errors import InvalidInputError
from tests.support.autoscaling.stores import Store
from tests.support.models.doubles_service import USER_CONFIG
from tests.support.models.hosted_models import Hosted, hosted, user_config
from tests.support.waiting import until


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


async def test_the_config_that_came_last_holds_even_while_another_version_loads():
    async with hosted("a", "b") as models:
        gate = models.load_gates["b", "2"] = threading.Event()
        await models.reconciler.configure(user_config(b={"version": "2"}))
        await until(lambda: ("b", "2") in models.loads)
        await models.reconciler.configure(user_config())
        models.reconciler.reconcile()
        gate.set()
        await until(lambda: models.states("b") == {"1": "READY"})
        await until(lambda: not models.repository._tasks)
        assert models.versions() == {"a": "1", "b": "1"}


async def test_a_version_that_cannot_be_meant_is_rejected_before_anything_changes():
    async with hosted("a", "b") as models:
        sla = {"response_time_ms": 200, "percentile": 99}
        for message, named in (
            (r"models\.c: unknown key; known are a", {"c": {"version": "2"}}),
            (r"models\.b: weights: ", {"b": {"weights": "/models/b2.safetensors"}}),
        ):
            with pytest.raises(InvalidInputError, match=message):
                await models.reconciler.configure(
                    user_config(a={"sla": sla, "version": "2"}, **named)
                )
        assert models.repository.first.controller.user_config.sla.response_time_ms == 50
        models.reconciler.reconcile()
        assert models.versions() == {"a": "1", "b": "1"}


async def test_a_load_that_fails_is_tried_again_after_a_pause():
    clock = Clock()
    async with hosted("a", "b", clock=clock) as models:
        models.errors["b", "2"] = [FetchError("the remote is away")] * 2
        await models.reconciler.configure(user_config(b={"version": "2"}))
        await until(lambda: not models.reconciler._changing)
        assert models.reconciler.config_error == "b: the remote is away"
        models.reconciler.reconcile()
        assert models.loads.count(("b", "2")) == 1
        for loads in (2, 3):
            clock.now_s += PAUSE_S
            for _ in range(2):
                models.reconciler.reconcile()
                assert len(models.reconciler._changing) == 1, "it is tried once at a time"
            await until(lambda: not models.reconciler._changing)
            assert models.loads.count(("b", "2")) == loads
        assert models.versions() == {"a": "1", "b": "2"}
        assert models.reconciler.config_error is None


async def test_a_new_deploy_tries_a_load_that_failed_at_once():
    async with hosted("a", "b", clock=Clock()) as models:
        models.errors["b", "2"] = [FetchError("the remote is away")]
        for _ in range(2):
            await models.reconciler.configure(user_config(b={"version": "2"}))
            await until(lambda: not models.reconciler._changing)
        assert models.versions() == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("error", "loads"),
    # A full store has room as soon as another model is idle.
    [(UnknownModelError("b@1: not there"), 1), (StoreFullError("b: needs 5 bytes"), 5)],
)
async def test_requests_do_not_load_again_and_again_what_cannot_be_loaded(error, loads):
    clock = Clock()
    async with hosted("a", "b", on_demand=True, clock=clock) as models:
        models.errors["b", "1"] = [error] * loads
        for _ in range(5):
            with pytest.raises(type(error), match="b"):
                await models.reconciler.load_on_demand("b")
        clock.now_s += PAUSE_S
        # Nobody needs it before a request asks for it.
        models.reconciler.reconcile()
        assert models.loads.count(("b", "1")) == loads
        await models.reconciler.load_on_demand("b")
        assert models.versions() == {"a": "1", "b": "1"}


async def apply(models, store, **named):
    last_good = LastGoodConfig("app", "Replica", "a", store.kept.get, store.save)
    content = {**USER_CONFIG, "models": named}
    await apply_user_config(models.reconciler, content, last_good, parse_user_config)


@pytest.mark.parametrize("error", [None, UnknownModelError("b@9: not there")])
async def test_a_version_that_cannot_be_served_takes_nothing_down(error):
    store = Store()
    wrong = {"b": {"version": "9"}} if error else {"b": {"weights": "/b9.safetensors"}}
    running, starting = Hosted("a", "b"), Hosted("a", "b")
    try:
        for models in (running, starting):
            models.errors["b", "9"] = [error] * 3
        await apply(running, store, b={"version": "2"})
        good = dict(store.kept)
        await apply(running, store, **wrong)
        await until(lambda: not running.reconciler._changing)
        assert store.kept == good
        await apply(starting, store, **wrong)
        await until(lambda: not starting.reconciler._changing)
        for models in (running, starting):
            assert models.versions() == {"a": "1", "b": "2"}
            assert ("b@9: not there" if error else "models.b: ") in models.reconciler.config_error
        assert store.kept == good
    finally:
        await running.repository.close(5)
        await starting.repository.close(5)


async def test_a_config_is_the_last_good_one_once_its_version_serves():
    store = Store()
    async with hosted("a", "b") as models:
        gate = models.load_gates["b", "2"] = threading.Event()
        await apply(models, store, b={"version": "2"})
        await until(lambda: ("b", "2") in models.loads)
        models.reconciler.reconcile()
        assert store.kept == {}
        gate.set()
        await until(lambda: store.kept)
        assert models.versions() == {"a": "1", "b": "2"}
