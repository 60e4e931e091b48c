import asyncio
import contextlib
import time

import numpy as np
import orjson
import pytest

from autoscaler.reports import ReplicaReport
from deployments.control.model_corrections import WaitCorrection
from deployments.errors import BusyError, DeadlineError, ModelError
from deployments.haproxy.stats import ProxyReport
from deployments.http.app import InferenceApp
from policy.batcher.requests import Refusal
from policy.profile import Profile
from tests.support.models.emulated_service import (
    REFUSES,
    emulated_service,
    infer,
)

LATENCY = {"max_batch_size": 4, "latency_ms": {"per_request": 1.0, "fixed": 3.0}}
PROFILE = Profile.from_dict(LATENCY)


async def test_policy_report_autoscaler_and_wait_correction_count_the_same_late_requests(
    monkeypatch,
):
    corrections: list[tuple[int, int]] = []

    def revise(self: WaitCorrection, requests, late, late_share_allowed):
        corrections.append((requests, late))
        return self.factor

    monkeypatch.setattr(WaitCorrection, "revise", revise)
    minute_ms = 60_000
    expected = Profile("m", "d", np.array([4.0]))
    slow = Profile("m", "d", np.array([400.0]))
    sla = {"response_time_ms": minute_ms}
    serve = {"late": "serve"}
    async with emulated_service(expected, device=slow, sla=sla, limits=serve) as service:
        in_time = asyncio.create_task(infer(service))
        await asyncio.sleep(0)
        late = asyncio.create_task(infer(service, sent_s_ago=61))
        leaves_in_time = asyncio.create_task(infer(service))
        leaves_late = asyncio.create_task(infer(service, sent_s_ago=61))
        # The device is expected to be free in 4 ms, but is busy for 400 ms.
        with pytest.raises(DeadlineError):
            await infer(service, deadline_ms=20)
        with pytest.raises(DeadlineError):
            await infer(service, sent_s_ago=60, deadline_ms=minute_ms + 20)
        for task in (leaves_in_time, leaves_late):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.gather(in_time, late)
        await service.tick()
        rows, stats = service.explain()["rows"], service.autoscaling_stats()
    # Late: one answer, one client that left, and the deadline of more than a minute.
    assert rows["late"] == stats["late_total"] == 3
    assert stats["answered_total"] == 4
    assert corrections == [(4, 3)]
    assert rows["deadline_missed"] == 2


@pytest.mark.parametrize(("without_token", "refused"), [(0, 300), (4, 100)])
async def test_what_the_balancer_refused_counts_as_many_rows_as_other_requests_have(
    without_token, refused
):
    """HAProxy cannot see who is denied: of what it refused, as many as of what came count."""
    async with emulated_service(PROFILE) as service:
        for rows in (4, 2):
            service.event_loop_meter.request_read(time.monotonic())
            await infer(service, rows=rows)
        for _ in range(without_token):
            service.event_loop_meter.request_read(time.monotonic())
        for _ in range(10):  # it does not grow with what was counted before
            service.compare_with_proxy(ProxyReport(denied=10))
        stats = service.autoscaling_stats()
    assert (stats["offered_total"], stats["refused_total"]) == (6 + refused, refused)
    assert stats["refused_by_balancer_total"] == refused


async def test_what_a_refused_try_takes_is_reported():
    async with emulated_service(PROFILE) as service:
        before = service.explain()["try_delays"]
        now_s = time.monotonic()
        service.count_rejected(Refusal.FULL, [(now_s - 0.02, 1), (now_s - 0.04, 1)], now_s)
        service.count_rejected(Refusal.EXPIRED, [(now_s - 9.0, 1)], now_s)
        await service.tick()
        stats, delays = service.autoscaling_stats(), service.explain()["try_delays"]
    assert before["retry_delay_ms"] == 0
    assert stats["retry_delay_ms"] == delays["retry_delay_ms"] == pytest.approx(30.0)
    assert stats["settings_retries"] == delays["retries"] == 5


async def test_refusals_count_in_rows(monkeypatch):
    """Ten refused requests of 64 rows once counted as ten, and the fleet stayed too small."""
    body = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [64, 1]}]})
    async with emulated_service(PROFILE) as service:
        monkeypatch.setattr(service.batcher.core, "has_room", lambda *_, priority: False)
        app = InferenceApp(service, "1")
        for _ in range(10):
            with pytest.raises(BusyError):
                app._admit(body, time.monotonic(), 0)
        report = ReplicaReport.from_floats("a", 1.0, service.autoscaling_stats())
    assert (report.offered_total, report.refused_total) == (640, 640)


async def test_what_the_model_fails_on_is_counted_but_no_sign_of_too_few_replicas():
    async with emulated_service(PROFILE) as service:
        service.counts.failed(ModelError("the model failed on this request"), 3, time.monotonic())
        rows, stats = service.explain()["rows"], service.autoscaling_stats()
        assert 0 <= stats["counted_s"] <= time.monotonic() - service.counting_since_s
    assert (rows["failed"], rows["answered"]) == (3, 0)
    assert stats["answered_total"] == stats["late_total"] == 0


async def test_a_request_that_cannot_be_in_time_is_not_begun():
    async with emulated_service(
        PROFILE, sla={"response_time_ms": 20_000}, limits=REFUSES
    ) as service:
        with pytest.raises(DeadlineError, match="within the SLA's response time") as caught:
            await infer(service, rows=3, sent_s_ago=20.0)
        assert caught.value.status == 504
        # What was read too late is not even parsed.
        now_s = time.monotonic()
        app = InferenceApp(service, "1")
        app._admit(b"", now_s - 10, 0)
        with pytest.raises(DeadlineError, match="within the SLA's response time"):
            app._admit(b"", now_s - 30, 0)
        rows, stats = service.explain()["rows"], service.autoscaling_stats()
        assert (rows["offered"], rows["refused"], rows["completed"]) == (4, 0, 0)
        assert (rows["expired"], rows["deadline_missed"]) == (4, 0)
        assert rows["late"] == stats["late_total"] == stats["answered_total"] == 4


async def test_a_deadline_beyond_the_time_limit_is_cut():
    profile = Profile("m", "d", np.array([50.0]))
    limits = {"late": "serve", "expert": {"max_timeout_ms": 20}}
    async with emulated_service(profile, limits=limits) as service:
        with pytest.raises(DeadlineError, match="shorter than its own processing time"):
            await infer(service, deadline_ms=1e6)
