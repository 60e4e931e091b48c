"""A replica's metrics, handed to recorders instead of Ray."""

import asyncio
import contextlib
import time
import warnings
from itertools import pairwise
from typing import Any

import pytest

from deployments.access.tokens import hash_token
from deployments.config.user_config import parse_user_config
from deployments.control.last_good_config import LastGoodConfig, apply_user_config
from deployments.errors import DeadlineError, RequestError
from deployments.serving.service import InferenceService
from policy.profile import Profile
from tests.support.models.emulated_service import REFUSES, emulated_service, infer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray warns while it is imported
    from deployments.observability import metrics

PROFILE = Profile.from_dict({"max_batch_size": 4, "latency_ms": {"per_request": 0.1, "fixed": 0.2}})


class Recorder:
    """A counter, gauge or histogram that keeps its values by tags."""

    by_name: dict[str, "Recorder"]

    def __init__(self, name: str, *_: Any) -> None:
        self.info = {"name": name}
        self.values: dict[tuple[str, ...], list[float]] = {}
        self.by_name[name] = self

    def set(self, value: float, tags: dict[str, str] | None = None) -> None:
        """Record a value."""
        self.values.setdefault(tuple((tags or {}).values()), []).append(value)

    inc = observe = set


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Recorder]:
    """Return the recorders by the metric's name."""
    Recorder.by_name = {}
    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(f"deployments.observability.metrics.metrics.{kind}", Recorder)
    return Recorder.by_name


async def test_a_flush_sets_the_gauges_without_explaining_the_policy(
    recorded: dict[str, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InferenceService, "explain", None)
    sla = {"response_time_ms": 5000, "percentile": 95}
    async with emulated_service(PROFILE, sla=sla) as service:
        exported = metrics.ReplicaMetrics(service)
        await infer(service)
        service.answers[200, ""] += 1  # as the HTTP interface does
        await exported.flush(await service.tick())
        assert recorded["sojourn_sla_response_time_seconds"].values == {(): [5.0]}
        assert recorded["sojourn_sla_percentile_ratio"].values[()] == pytest.approx([0.95])
        assert recorded["sojourn_control_limit_rows"].values == {(): [1]}
        assert recorded["sojourn_queue_length_rows"].values == {(): [0]}
        # On a machine that others use as well, it is neither.
        bottlenecks = recorded["sojourn_bottleneck"].values
        assert bottlenecks.keys() == {("device",), ("event_loop",), ("neither",)}
        assert sorted(value for (value,) in bottlenecks.values()) == [0.0, 0.0, 1.0]
        (utilization,) = recorded["sojourn_event_loop_utilization_ratio"].values[()]
        assert 0 <= utilization <= 1
        assert recorded["sojourn_answers_total"].values == {("200", ""): [1]}


async def test_counters_grow_by_what_is_new(recorded: dict[str, Recorder]) -> None:
    async with emulated_service(PROFILE) as service:
        exported = metrics.ReplicaMetrics(service)
        for requests in (2, 0, 1):
            for _ in range(requests):
                await infer(service)
            await exported.flush(await service.tick())
        assert recorded["sojourn_offered_rows_total"].values == {(): [2, 1]}
        assert len(recorded["sojourn_response_time_seconds"].values[()]) == 3


async def test_a_busy_second_is_handed_over_as_a_sample_in_turns_with_the_requests(
    recorded: dict[str, Recorder],
) -> None:
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


async def test_who_was_admitted_and_who_was_not_is_counted(recorded: dict[str, Recorder]) -> None:
    access = {"tokens": [{"name": "alice", "hash": hash_token("a"), "requests_per_s": 2}]}
    async with emulated_service(PROFILE, access=access) as service:
        exported = metrics.ReplicaMetrics(service)
        for header in (b"Bearer a", b"Bearer a", b"Bearer a", None):
            with contextlib.suppress(RequestError):
                service.access.admit(header, "inference", 0.0)
        await exported.flush(await service.tick())
        await exported.flush(await service.tick())
        assert recorded["sojourn_admitted_requests_total"].values == {("alice",): [2]}
        denied = recorded["sojourn_denied_requests_total"].values
        assert denied == {("429",): [1], ("401",): [1]}


async def test_what_becomes_of_rows_that_are_not_answered_is_counted_apart(
    recorded: dict[str, Recorder],
) -> None:
    slow = Profile.from_dict({"max_batch_size": 1, "latency_ms": {"per_request": 300, "fixed": 0}})
    sla, limits = {"response_time_ms": 3_000}, {"expert": {"max_timeout_ms": 1e4}, **REFUSES}
    async with emulated_service(slow, sla=sla, limits=limits) as service:
        exported = metrics.ReplicaMetrics(service)
        running, waiting, given_up = (asyncio.ensure_future(infer(service)) for _ in range(3))
        while service.batcher.core.queue_length < 2:
            await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        with pytest.raises(DeadlineError, match="within the SLA"):
            await infer(service, sent_s_ago=30.0)
        service.batcher.expire(time.monotonic())
        for task in (running, waiting):
            with pytest.raises(DeadlineError, match="was not answered in time"):
                await task
        await exported.flush(await service.tick())
        rows = {
            kind: recorded[f"sojourn_{kind}_rows_total"].values.get((), [0])
            for kind in ("offered", "refused", "pruned", "refused_too_late", "cancelled")
        }
        assert rows == {
            "offered": [4],
            "refused": [0],
            "pruned": [2],
            "refused_too_late": [1],
            "cancelled": [1],
        }
        assert recorded["sojourn_body_bytes"].values == {(): [0]}


async def test_another_version_counts_from_zero_and_tokens_go_on(
    recorded: dict[str, Recorder],
) -> None:
    async with emulated_service(PROFILE) as old, emulated_service(PROFILE) as new:
        exported = metrics.ReplicaMetrics(old)
        new.access = old.access
        for _ in range(3):
            await infer(old)
        old.access.admitted["client"] += 3
        await exported.flush(await old.tick())
        exported.use(new)
        await infer(new)
        new.access.admitted["client"] += 1
        await exported.flush(await new.tick())
        assert recorded["sojourn_offered_rows_total"].values == {(): [3, 1]}
        assert recorded["sojourn_admitted_requests_total"].values == {("client",): [3, 1]}


async def test_a_rejected_config_that_leaves_a_revoked_token_valid_is_loud(
    recorded: dict[str, Recorder], caplog: pytest.LogCaptureFixture
) -> None:
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
