import asyncio
import contextlib
from itertools import pairwise

import pytest

from deployments.access.tokens import hash_token
from deployments.config.user_config import parse_user_config
from deployments.control.last_good_config import LastGoodConfig, apply_user_config
from deployments.errors import RequestError
from deployments.observability import metrics
from policy.profile import Profile
from tests.support.models.emulated_service import emulated_service, infer

PROFILE = Profile.from_dict({"max_batch_size": 4, "latency_ms": {"per_request": 0.1, "fixed": 0.2}})


class Recorder:
    by_name: dict[str, "Recorder"]

    def __init__(self, name, *_):
        self.values: dict[tuple[str, ...], list[float]] = {}
        self.by_name[name] = self

    def set(self, value, tags=None):
        self.values.setdefault(tuple((tags or {}).values()), []).append(value)

    inc = observe = set


@pytest.fixture
def recorded(monkeypatch):
    Recorder.by_name = {}
    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(f"deployments.observability.metrics.metrics.{kind}", Recorder)
    return Recorder.by_name


async def test_a_flush_hands_over_what_the_service_counts(recorded):
    sla = {"response_time_ms": 5000, "percentile": 95}
    access = {"tokens": [{"name": "alice", "hash": hash_token("a"), "requests_per_s": 2}]}
    kinds = ("offered", "refused", "completed", "pruned", "refused_too_late", "cancelled")
    async with emulated_service(PROFILE, sla=sla, access=access) as service:
        for header in (b"Bearer a", b"Bearer a", b"Bearer a", None):
            with contextlib.suppress(RequestError):
                service.access.admit(header, "inference", 0.0)
        for number, kind in enumerate(kinds, 1):
            setattr(service.batcher.rows, kind, number)
        service.answers[200, ""] += 1
        await metrics.ReplicaMetrics(service).flush(await service.tick())
    values = {name.removeprefix("sojourn_"): one.values for name, one in recorded.items()}
    assert [values[f"{kind}_rows_total"] for kind in kinds] == [{(): [n]} for n in range(1, 7)]
    assert values["admitted_requests_total"] == {("alice",): [2]}
    assert values["denied_requests_total"] == {("429",): [1], ("401",): [1]}
    assert values["answers_total"] == {("200", ""): [1]}
    assert values["sla_response_time_seconds"] == {(): [5.0]}
    assert values["sla_percentile_ratio"][()] == pytest.approx([0.95])
    assert values["control_limit_rows"] == {(): [1]}
    assert values["queue_length_rows"] == {(): [0]}
    # On a machine that others use as well, it may be any.
    assert values["bottleneck"].keys() == {("device",), ("event_loop",), ("neither",)}
    assert sorted(value for (value,) in values["bottleneck"].values()) == [0.0, 0.0, 1.0]
    assert 0 <= values["event_loop_utilization_ratio"][()][0] <= 1


async def test_a_busy_second_is_handed_over_as_a_sample_in_turns_with_the_requests(recorded):
    async with emulated_service(PROFILE) as service:
        exported = metrics.ReplicaMetrics(service)
        for _ in range(1000):
            service.observer.answered(1, 0.001)
        given: list[int] = []  # values that were handed over by the end of each turn
        flushing = asyncio.create_task(exported.flush(await service.tick()))
        while not flushing.done():
            values = [value for one in recorded.values() for value in one.values.values()]
            given.append(sum(map(len, values)))
            await asyncio.sleep(0)
        assert len(recorded["sojourn_response_time_seconds"].values[()]) == 100
        assert given[-1] > 100
        assert max(after - before for before, after in pairwise(given)) <= 10


async def test_counters_grow_by_what_is_new_and_tokens_go_on_with_another_version(recorded):
    async with emulated_service(PROFILE) as old, emulated_service(PROFILE) as new:
        exported = metrics.ReplicaMetrics(old)
        new.access = old.access
        for service, requests in ((old, 2), (old, 0), (old, 1), (new, 1)):
            if service is new:
                exported.use(new)
            for _ in range(requests):
                await infer(service)
                service.access.admitted["client"] += 1
            await exported.flush(await service.tick())
        assert recorded["sojourn_offered_rows_total"].values == {(): [2, 1, 1]}
        assert recorded["sojourn_admitted_requests_total"].values == {("client",): [2, 1, 1]}
        assert len(recorded["sojourn_response_time_seconds"].values[()]) == 4


async def test_a_rejected_config_that_leaves_a_revoked_token_valid_is_loud(recorded, caplog):
    tokens = {"access": {"tokens": [{"name": "web", "hash": hash_token("secret")}]}}
    last_good = LastGoodConfig("a", "Replica", "m", lambda key: None, lambda key, content: None)
    async with emulated_service(PROFILE, **tokens) as service:
        exported = metrics.ReplicaMetrics(service)
        for revoked, rejected in (({"limits": {"lat": 1}}, 1.0), ({}, 0.0)):
            content = {"access": {"tokens": []}, **revoked}
            await apply_user_config(service, content, last_good, parse_user_config)
            await exported.flush(await service.tick())
            assert recorded["sojourn_config_rejected"].values[()][-1] == rejected
            assert bool(service.explain()["config_error"]) == bool(rejected)
            opened = service.access.allows(b"Bearer secret", "inference")
            assert opened == bool(rejected)
    assert "the previous one stays in force, with its tokens" in caplog.text
