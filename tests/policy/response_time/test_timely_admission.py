import numpy as np
import pytest

from policy.batching_policy import BatchingPolicy
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from tests.support.profiles import GOOGLENET_P4 as P4
from tests.support.profiles import PADDED

ONE_BY_ONE = Profile("one", "by one", np.array([2.0]))
FLAT = Profile("flat", "d", np.full(8, 40.0))


def refused(profile, rate_per_s, *, within_ms, room=4096, size=None):
    policy = BatchingPolicy.from_control_limit(1, size or profile.max_batch_size)
    return evaluate(
        profile,
        policy,
        rate_per_s,
        max_queue_rows=room,
        admit_within_ms=within_ms,
        answer_within_ms=within_ms / 0.97,
    ).full_probability


def refused_in_a_queue(profile, rate_per_s, *, within_ms, room, requests=200_000):
    """Follow requests one by one; return the share refused, and the longest response time."""
    latency_ms, size = profile.latency_ms, profile.max_batch_size
    arrivals_ms = np.cumsum(np.random.default_rng(7).exponential(1e3 / rate_per_s, requests))
    waiting: list[float] = []
    free_ms, lost, longest_ms = 0.0, 0, 0.0
    for now_ms in arrivals_ms.tolist():
        while waiting and free_ms <= now_ms:
            batch, waiting = waiting[:size], waiting[size:]
            free_ms += float(latency_ms[len(batch) - 1])
            longest_ms = max(longest_ms, free_ms - batch[0])
        if free_ms <= now_ms:
            free_ms = now_ms + float(latency_ms[0])
            continue
        batches = len(waiting) // size + 1
        done_ms = free_ms + batches * float(latency_ms[-1])
        if len(waiting) < room and done_ms <= now_ms + within_ms:
            waiting.append(now_ms)
        else:
            lost += 1
    return lost / requests, longest_ms


@pytest.mark.parametrize(
    ("profile", "within_ms", "room"),
    [
        (ONE_BY_ONE, 5.0, 100),
        (P4.up_to(14), 11.2, 28),
        (P4.up_to(14), 11.2, 17),
        (FLAT, 79.0, 16),
        (PADDED, 24.0, 96),
    ],
)
@pytest.mark.parametrize("load", [0.9, 2.5])
def test_it_refuses_what_a_queue_does_and_answers_the_rest_in_time(profile, within_ms, room, load):
    rate_per_s = load * profile.capacity_per_s
    expected, longest_ms = refused_in_a_queue(profile, rate_per_s, within_ms=within_ms, room=room)
    assert refused(profile, rate_per_s, within_ms=within_ms, room=room) == pytest.approx(
        expected, abs=0.006
    )
    assert longest_ms <= within_ms + 1e-6


def test_batches_smaller_than_those_counted_with_leave_less_time():
    """Those that would be dropped count as refused: they cost the device nothing either way."""
    rate_per_s = 2 * P4.capacity_per_s
    counted = refused(P4, rate_per_s, within_ms=24.0)
    smaller = refused(P4, rate_per_s, within_ms=24.0, size=8)
    capacity_per_s = 8e3 / float(P4.latency_ms[7])
    assert smaller == pytest.approx(1 - capacity_per_s / rate_per_s, rel=0.01)
    assert smaller > counted
