"""Requests refused in one iteration of the loop, counted together."""

import asyncio
import time

import pytest

from deployments.http.app import InferenceApp
from deployments.http.protocol import HostedApp
from deployments.observability.request_info import RequestInfo
from policy.profile import Profile
from tests.support.models.emulated_service import REFUSES, emulated_service

PROFILE = Profile.from_dict({"max_batch_size": 4, "latency_ms": {"per_request": 1, "fixed": 5}})
ROWS = (1, 64, 1, 3)


@pytest.mark.parametrize(
    ("too_late", "rows_name", "answer"),
    [(False, "refused", (503, "queue_full")), (True, "expired", (504, "deadline"))],
)
async def test_they_are_counted_once_after_the_iteration_that_read_them(
    too_late, rows_name, answer
):
    async with emulated_service(
        PROFILE, sla={"response_time_ms": 20_000}, limits=REFUSES
    ) as service:
        app = InferenceApp(service, "1")
        rejections = HostedApp(app, asyncio.get_running_loop()).rejections
        arrival_s = time.monotonic() - (30.0 if too_late else 0.0)
        for times in (1, 2):
            for rows in ROWS:
                rejections.add(arrival_s, rows, lambda: RequestInfo(b"a"), too_late=too_late)
            # In the next iteration, their cost would be taken for a request's.
            assert service.event_loop_meter.refused == times * len(ROWS)
            assert service.explain()["rows"]["offered"] == (times - 1) * sum(ROWS)
            await asyncio.sleep(0)
            counted = service.explain()["rows"]
            assert counted["offered"] == counted[rows_name] == times * sum(ROWS)
            assert service.answers == {answer: times * len(ROWS)}
            assert service.event_loop_meter.refused == times * len(ROWS)
            totals = app.outcomes.totals.describe("m", "1", service.batch_totals)
            assert totals["inference_stats"]["fail"]["count"] == times * len(ROWS)
