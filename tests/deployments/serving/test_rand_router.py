"""The request router's choice of a replica. tests/integration runs it under real calls."""

import asyncio
import itertools
import random
from types import SimpleNamespace

import pytest

from deployments.serving.rand_router import RandRequestRouter
from policy.errors import InvalidInputError


def router_of(retry_delay_ms):
    # The constructor of Ray's router needs a cluster; the choice of a replica does not.
    router = RandRequestRouter.__new__(RandRequestRouter)
    router.initialize_state(retry_delay_ms=retry_delay_ms)
    return router


def replicas_of(number):
    return [SimpleNamespace(replica_id=index) for index in range(number)]


def new_request():
    return SimpleNamespace(routing_context=SimpleNamespace())


async def chosen(router: RandRequestRouter, number, request):
    """Return the replica that is chosen of so many."""
    ((replica,),) = await router.choose_replicas(replicas_of(number), request)
    return replica.replica_id


async def test_a_retry_goes_to_another_replica_if_there_is_one():
    random.seed(2)
    router, request = router_of(0), new_request()
    tried = [await chosen(router, 3, request) for _ in range(200)]
    assert all(one != next_one for one, next_one in itertools.pairwise(tried))
    assert set(tried) == {0, 1, 2}
    assert [await chosen(router, 1, request) for _ in range(3)] == [0, 0, 0]


async def test_retries_wait_a_constant_delay_and_the_first_try_none(monkeypatch):
    """Ray's own delay, which doubles with each attempt, adds nothing."""
    slept: list[float] = []

    async def sleep(delay_s):
        slept.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    router, request = router_of(40), new_request()
    for attempt in range(6):
        await router.choose_replicas(replicas_of(3), request)
        await router._backoff(attempt)
    assert slept == [0.04] * 5


def test_a_negative_delay_is_rejected():
    with pytest.raises(InvalidInputError, match="retry_delay_ms"):
        router_of(-1)
