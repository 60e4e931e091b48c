"""What limits a replica."""

import pytest

from deployments.control.bottleneck import bottleneck
from deployments.control.front_fit import FrontFit
from policy.front import FrontCosts
from policy.profile import Profile
from tests.support.front_counts import front_counts

#: A full batch of 16 costs the device 0.125 ms a request, a batch of one 0.5 ms.
LATENCY = {"max_batch_size": 16, "latency_ms": {"per_request": 0.1, "fixed": 0.4}}


def profile(request_ms: float) -> Profile:
    front = FrontCosts(request_ms, 0.0, shares_cpu=False)
    return Profile.from_dict({**LATENCY, "front": front.to_dict()})


def fit(*, requests: int = 1000, batches: int = 500, foreign_wait_s: float = 0.0) -> FrontFit:
    front = FrontFit()
    busy_cpu_s = 0.3
    busy_s = busy_cpu_s + foreign_wait_s
    counts = front_counts(
        requests, batches, costs_s=(3e-4, 0.0, 0.0), busy_s=busy_s, busy_cpu_s=busy_cpu_s
    )
    front.observe(counts, shares_cpu=False)
    return front


@pytest.mark.parametrize(
    ("request_ms", "batches", "expected"),
    [
        (0.2, 1000, "device"),
        (0.2, 100, "front"),
        (0.6, 1000, "front"),
        (0.05, 62, "device"),
    ],
)
def test_the_batch_size_in_use_decides_which_stage_is_slower(
    request_ms: float, batches: int, expected: str
) -> None:
    assert bottleneck(profile(request_ms), fit(batches=batches), 1000.0) == expected


def test_without_a_front_it_is_the_device() -> None:
    assert bottleneck(Profile.from_dict(LATENCY), FrontFit(), 100.0) == "device"


@pytest.mark.parametrize(("foreign_wait_s", "expected"), [(0.1, "device"), (0.4, "neither")])
def test_a_loop_that_waits_for_other_processes_is_limited_by_neither(
    foreign_wait_s: float, expected: str
) -> None:
    front = fit(batches=1000, foreign_wait_s=foreign_wait_s)
    assert bottleneck(profile(0.2), front, 1000.0) == expected


def test_other_processes_do_not_limit_an_idle_loop() -> None:
    front = FrontFit()
    counts = front_counts(1, 1, costs_s=(1e-3, 0.0, 0.0), busy_s=0.02)
    front.observe(counts, shares_cpu=False)
    assert bottleneck(profile(0.2), front, 1.0) == "device"
