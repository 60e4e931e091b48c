"""Requests to a service without HTTP: which are let in, and how long they may take."""

import numpy as np
import pytest

from deployments.errors import DeadlineError
from policy.profile import Profile
from tests.support.models.emulated_service import REFUSES, emulated_service, infer

PROFILE = Profile("m", "d", np.array([4.0, 5.0, 6.0, 7.0]))


async def test_a_request_that_cannot_be_in_time_is_not_begun() -> None:
    async with emulated_service(
        PROFILE, sla={"response_time_ms": 20_000}, limits=REFUSES
    ) as service:
        with pytest.raises(DeadlineError, match="within the SLA's response time") as caught:
            await infer(service, rows=3, sent_s_ago=20.0)
        assert caught.value.status == 504
        rows, stats = service.explain()["rows"], service.autoscaling_stats()
        assert (rows["completed"], rows["expired"], rows["deadline_missed"]) == (0, 3, 0)
        assert rows["late"] == stats["late_total"] == stats["answered_total"] == 3


async def test_a_deadline_beyond_the_time_limit_is_cut() -> None:
    profile = Profile.from_dict(
        {"max_batch_size": 1, "latency_ms": {"per_request": 50, "fixed": 0}}
    )
    limits = {"late": "serve", "expert": {"max_timeout_ms": 20}}
    async with emulated_service(profile, limits=limits) as service:
        with pytest.raises(DeadlineError, match="shorter than its own processing time"):
            await infer(service, deadline_ms=1e6)
