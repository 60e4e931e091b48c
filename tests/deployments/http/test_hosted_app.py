"""Requests refused in one iteration of the loop, counted together."""

import asyncio
import json
import logging
import time
from functools import partial

import pytest

from deployments.http.app import InferenceApp
from deployments.http.hosted_app import ERRORS
from deployments.http.protocol import HostedApp
from deployments.observability.request_info import RequestInfo
from policy.batcher.requests import Refusal, Request
from policy.profile import Profile
from tests.support.models.emulated_service import REFUSES, emulated_service

PROFILE = Profile.from_dict({"max_batch_size": 4, "latency_ms": {"per_request": 1, "fixed": 5}})
SLA = {"response_time_ms": 20_000}
ROWS = (1, 64, 1, 3)


def hosted_on(service):
    return HostedApp(InferenceApp(service, "1"), asyncio.get_running_loop())


def counts_of(service, hosted):
    rows, stats = service.explain()["rows"], service.autoscaling_stats()
    described = hosted.outcomes.totals.describe("m", "1", service.batch_totals)
    return {
        "rows": rows,
        "answered": stats["answered_total"],
        "refused by the front": service.event_loop_meter.refused,
        "answers": dict(service.answers),
        "failed": described["inference_stats"]["fail"]["count"],
    }


def info(name):
    return RequestInfo(name.encode())


@pytest.mark.parametrize("too_late", [False, True])
async def test_together_they_count_as_one_after_the_other(*, too_late):
    async with (
        emulated_service(PROFILE, sla=SLA, limits=REFUSES) as one,
        emulated_service(PROFILE, sla=SLA, limits=REFUSES) as each,
    ):
        now_s = time.monotonic()
        arrival_s = now_s - (30.0 if too_late else 0.0)
        hosted, alone = hosted_on(each), hosted_on(one)
        if not too_late:
            one.batcher.core.drain()
            each.batcher.core.drain()
        for rows in ROWS:
            refusal = one.admit(arrival_s, now_s)
            assert refusal is not None
            one.event_loop_meter.request_refused()
            one.count_rejected(refusal, [(arrival_s, rows)], now_s)
            one.answers[ERRORS[too_late].status, ERRORS[too_late].reason or ""] += 1
            alone.outcomes.totals.failed(arrival_s)
            hosted.rejections.add(arrival_s, rows, lambda: info("a"), too_late=too_late)
        assert counts_of(each, hosted)["rows"]["offered"] == 0
        await asyncio.sleep(0)
        counts = counts_of(each, hosted)
        assert counts == counts_of(one, alone)
        expected = (504, "deadline") if too_late else (503, "queue_full")
        assert counts["answers"] == {expected: len(ROWS)}
        assert counts["rows"]["expired" if too_late else "refused"] == sum(ROWS)
        await asyncio.sleep(0)
        assert counts_of(each, hosted) == counts, "nothing is counted twice"


async def test_one_line_in_the_log_names_the_first_and_counts_the_others(caplog):
    caplog.set_level(logging.INFO, "sojourn.requests")
    async with emulated_service(PROFILE, sla=SLA, limits=REFUSES) as service:
        service.batcher.core.drain()
        hosted = hosted_on(service)
        for names in ("abc", "de"):
            for name in names:
                hosted.rejections.add(time.monotonic(), 1, partial(info, name), too_late=False)
            await asyncio.sleep(0)
    lines = [json.loads(record.message) for record in caplog.records]
    assert [(line["request_id"], line.get("left_out")) for line in lines] == [("a", None), ("d", 2)]
    assert {line["status"] for line in lines} == {503}


async def test_a_high_priority_may_have_room_where_a_low_one_has_none():
    async with emulated_service(PROFILE, sla=SLA, limits=REFUSES) as service:
        core, now_s = service.batcher.core, time.monotonic()
        core.arrive(now_s, Request(now_s, 1))
        assert core.next_batch(now_s) is not None
        while core.arrive(now_s, Request(now_s, 64)) is None:
            pass
        core.arrive(now_s, Request(now_s, core.limits.max_queue_rows - core.queue_length))
        assert service.admit(now_s, now_s) is Refusal.FULL
        assert service.admit(now_s, now_s, 2) is Refusal.FULL
        assert service.admit(now_s, now_s, 99) is Refusal.FULL, "it will be answered 400"
        assert service.admit(now_s, now_s, 1) is None
        core.device_lost()


async def test_the_event_loop_counts_a_rejection_in_the_iteration_that_read_it():
    """The rest is counted in the next one, where its cost would be taken for a request's."""
    async with emulated_service(PROFILE, sla=SLA, limits=REFUSES) as service:
        hosted = hosted_on(service)
        hosted.rejections.add(time.monotonic(), 1, lambda: info("a"), too_late=False)
        assert service.event_loop_meter.refused == 1
        assert service.explain()["rows"]["refused"] == 0
        await asyncio.sleep(0)
        assert service.event_loop_meter.refused == 1
        assert service.explain()["rows"]["refused"] == 1
