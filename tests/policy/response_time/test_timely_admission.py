"""Refusals by time, against closed forms and a queue that is followed request by request."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.batch_sizes import BatchSizing
from policy.latency_quantiles import LatencyQuantiles
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.response_time.timely_admission import timely_refused_share
from tests.support.profiles import GOOGLENET_P4 as P4
from tests.support.profiles import PADDED

ONE_BY_ONE = Profile("one", "by one", np.array([2.0]))
FLAT = Profile("flat", "d", np.full(8, 40.0))


def refused(profile, rate_per_s, *, within_ms, room=4096, size=None, response_time_ms=None):
    sizing = BatchSizing.all_up_to(size or profile.max_batch_size)
    return timely_refused_share(
        profile,
        sizing,
        rate_per_s,
        waiting_room=room,
        admit_within_ms=within_ms,
        response_time_ms=response_time_ms or within_ms / 0.97,
    )


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


@pytest.mark.parametrize("load", [0.1, 0.9, 3.0])
def test_without_time_to_wait_it_is_erlangs_loss_system(load):
    share = refused(ONE_BY_ONE, 500.0 * load, within_ms=2.0)
    assert share == pytest.approx(load / (1 + load))


@pytest.mark.parametrize("load", [0.5, 0.95, 1.05, 2.0])
@pytest.mark.parametrize(("profile", "room"), [(ONE_BY_ONE, 3), (P4, 64), (FLAT, 5)])
def test_with_time_enough_only_the_waiting_room_refuses(profile, room, load):
    rate_per_s = load * profile.capacity_per_s
    sizing = BatchSizing.all_up_to(profile.max_batch_size)
    by_room = evaluate(profile, sizing.policy(1), rate_per_s, waiting_room=room).full_probability
    share = refused(profile, rate_per_s, within_ms=1e4, room=room)
    assert share == pytest.approx(by_room, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("profile", "within_ms", "room"),
    [
        (ONE_BY_ONE, 5.0, 100),
        (P4.up_to(14), 11.2, 28),
        (P4.up_to(14), 11.2, 17),
        (FLAT, 96.5, 16),
        (FLAT, 79.0, 16),
        (PADDED, 24.0, 96),
    ],
)
@pytest.mark.parametrize("load", [0.9, 1.2, 2.5])
def test_it_refuses_what_a_queue_does_and_answers_the_rest_in_time(profile, within_ms, room, load):
    rate_per_s = load * profile.capacity_per_s
    expected, longest_ms = refused_in_a_queue(profile, rate_per_s, within_ms=within_ms, room=room)
    assert refused(profile, rate_per_s, within_ms=within_ms, room=room) == pytest.approx(
        expected, abs=0.004
    )
    assert longest_ms <= within_ms + 1e-6


def test_batches_smaller_than_those_counted_with_leave_less_time():
    """Those that would be dropped count as refused: they cost the device nothing either way."""
    rate_per_s = 2 * P4.capacity_per_s
    counted = refused(P4, rate_per_s, within_ms=24.0, response_time_ms=25.0)
    smaller = refused(P4, rate_per_s, within_ms=24.0, response_time_ms=25.0, size=8)
    capacity_per_s = 8e3 / float(P4.latency_ms[7])
    assert smaller == pytest.approx(1 - capacity_per_s / rate_per_s, rel=0.01)
    assert smaller > counted


def test_where_a_full_batch_takes_too_long_one_request_may_wait():
    """As `Admission` decides: it would never be served otherwise."""
    assert refused(FLAT, 20.0, within_ms=39.0, room=8) == pytest.approx(
        refused(FLAT, 20.0, within_ms=1e4, room=1)
    )


def test_batch_times_that_vary_count_by_their_mean():
    ratios = np.array([0.9, 1.3])[:, None] * np.ones(8)
    varied = replace(FLAT, latency_quantiles=LatencyQuantiles(np.array([10.0, 90.0]), ratios))
    mean_ms = float(varied.latency_quantiles.means_ms(FLAT.latency_ms)[0])
    assert refused(varied, 1e4, within_ms=200.0) == pytest.approx(1 - 8e3 / mean_ms / 1e4, rel=1e-3)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.5, 5.0), min_size=1, max_size=6),
    st.floats(0.0, 20.0),
    st.floats(1.0, 4.0),
    st.lists(st.floats(0.05, 4.0), min_size=2, max_size=4),
    st.integers(1, 40),
)
def test_a_higher_rate_is_never_answered_less_often_nor_more_than_the_device_can(
    steps_ms, first_ms, batches, loads, room
):
    latency_ms = first_ms + np.cumsum(steps_ms)
    profile = Profile("any", "d", latency_ms)
    profile = profile.up_to(profile.best_batch_size)
    within_ms = batches * float(profile.latency_ms[-1])
    in_time = []
    for load in sorted(loads):
        rate_per_s = load * profile.capacity_per_s
        share = refused(profile, rate_per_s, within_ms=within_ms, room=room)
        in_time.append((1 - share) * rate_per_s)
        assert 0 <= share <= 1
    assert all(low <= high * (1 + 1e-9) for low, high in itertools.pairwise(in_time))
    assert in_time[-1] <= profile.capacity_per_s * (1 + 1e-9)
