import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.observe.start_times import StartTimes
from autoscaler.reports import WEIGHTS_TIERS


def reported(times_s):
    starts = StartTimes()
    for number, start_time_s in enumerate(times_s):
        starts.observe(f"r{number}", start_time_s)
    return starts


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=50))
def test_at_least_half_of_the_starts_take_no_longer_than_the_horizon(times_s):
    """And at least half take no less: it is a median."""
    horizon_s = reported(times_s).horizon_s
    assert horizon_s in times_s
    assert sum(time_s <= horizon_s for time_s in times_s) > len(times_s) / 2
    assert sum(time_s >= horizon_s for time_s in times_s) >= len(times_s) / 2


TIERS = st.sampled_from([0, *range(1, 1 + len(WEIGHTS_TIERS))])


@given(
    st.lists(st.tuples(st.floats(0.1, 1e4), TIERS), max_size=50),
    st.lists(st.floats(0.1, 1e4), min_size=2, max_size=3),
    TIERS,
)
def test_two_of_three_starts_show_the_tier_whose_starts_count(before, latest_s, tier):
    if len(latest_s) == 2:
        before = [*before, (1.0, tier)]
    starts = StartTimes()
    observed = [*before, *((time_s, tier) for time_s in latest_s)]
    for number, (time_s, found) in enumerate(observed):
        starts.observe(f"r{number}", time_s, tier=found)
    assert starts.horizon_s == reported([s for s, found in observed if found == tier]).horizon_s
    medians_s = {"": starts.horizon_s} | starts.by_tier_s()
    assert medians_s[WEIGHTS_TIERS[tier - 1] if tier else ""] == starts.horizon_s
    assert StartTimes.from_state(starts.state_dict()).by_tier_s() == starts.by_tier_s()


def start(starts, number, ordered_s, ready_s, *, ordered, process_s=0.0):
    """Let one replica more become ready, created `process_s` after its order."""
    starts.track(ready_s, ordered=ordered, ready=number)
    created_s = ordered_s + process_s
    starts.observe(f"started at {ready_s}", ready_s - created_s, serving_since_s=ready_s)
    starts.track(ready_s + 1, ordered=ordered, ready=number)


def observed(starts):
    """Return the starts of which the order is certain, from the order on."""
    state = starts.state_dict()
    return [state["reported_s"][name] + wait_s for name, wait_s in state["waits_s"].items()]


def test_observed_start_times_include_the_start_of_the_process():
    starts = StartTimes()
    starts.observe("r1", 1.5)
    assert starts.horizon_s == 1.5
    starts.track(100.0, ordered=1, ready=1)
    starts.track(101.0, ordered=3, ready=1)
    starts.track(108.0, ordered=4, ready=1)
    start(starts, 2, 101.0, 111.0, ordered=4, process_s=6.0)
    assert starts.horizon_s == 10.0
    start(starts, 3, 101.0, 113.0, ordered=4, process_s=6.0)
    assert starts.horizon_s == 10.0
    assert observed(starts) == [10.0, 12.0]
    assert StartTimes.from_state(starts.state_dict()).horizon_s == 10.0


def test_where_no_wait_is_certain_it_is_taken_for_the_typical_one():
    """Else nothing is learned of the starts while an order that cannot be filled is open."""
    starts = StartTimes()
    starts.track(0.0, ordered=1, ready=1)
    starts.track(1.0, ordered=2, ready=1)
    start(starts, 2, 1.0, 11.0, ordered=2, process_s=3.0)
    starts.track(100.0, ordered=3, ready=2)
    for number in range(3, 6):
        now_s = 200.0 * number
        starts.track(now_s, ordered=number + 1, ready=number - 1)
        start(starts, number, now_s, now_s + 40, ordered=number + 1, process_s=3.0)
    assert observed(starts) == [10.0]
    assert starts.horizon_s == 40.0


def test_of_orders_that_overlap_it_is_unknown_which_are_left():
    """The first of two orders is filled last, or never; its age is no start time."""
    starts = StartTimes()
    starts.track(0.0, ordered=0, ready=0)
    starts.track(1.0, ordered=1, ready=0)
    starts.track(100.0, ordered=2, ready=0)
    start(starts, 1, 100.0, 110.0, ordered=2)
    start(starts, 2, 1.0, 500.0, ordered=2, process_s=494.0)
    assert observed(starts) == []
    assert starts.horizon_s == 10.0


def test_an_order_that_cannot_be_filled_does_not_wind_up_the_horizon():
    """Replicas that start in 60 s were charged to the orders before theirs: 60, 180, 540 s."""
    starts = StartTimes()
    starts.track(0.0, ordered=2, ready=2)
    now_s, horizons_s = 0.0, set()
    for number in range(20):
        stuck = number >= 5
        now_s += 600
        starts.track(now_s, ordered=3 + stuck, ready=2)
        serving_s = now_s + 60
        starts.track(serving_s, ordered=3 + stuck, ready=3)
        starts.observe(f"n{number}", 55.0, serving_since_s=serving_s)
        starts.track(serving_s + 2, ordered=3 + stuck, ready=3)
        starts.track(serving_s + 100, ordered=2 + stuck, ready=2)
        horizons_s.add(starts.horizon_s)
    assert horizons_s == {60.0}


def test_a_first_report_may_come_before_or_after_its_replica_counts_as_ready():
    for report_first in (True, False):
        starts = StartTimes()
        starts.track(0.0, ordered=1, ready=1)
        starts.track(10.0, ordered=2, ready=1)
        if report_first:
            starts.observe("r2", 20.0, serving_since_s=40.0)
        starts.track(41.0, ordered=2, ready=2)
        if not report_first:
            starts.observe("r2", 20.0, serving_since_s=40.0)
        starts.track(42.0, ordered=2, ready=2)
        assert observed(starts) == [30.0]


def test_a_start_that_failed_for_long_does_not_set_the_horizon():
    starts = StartTimes()
    starts.track(0.0, ordered=1, ready=1)
    for number in range(2, 5):
        starts.track(100.0 * number, ordered=number, ready=number - 1)
        start(starts, number, 100.0 * number, 100.0 * number + 10, ordered=number)
    starts.track(1000.0, ordered=5, ready=4)
    # The replica that started in the end was created shortly before.
    start(starts, 5, 1000.0, 1900.0, ordered=5, process_s=890.0)
    assert observed(starts) == [10.0, 10.0, 10.0, 30.0]
    assert starts.horizon_s == 10.0


def measured_s(seed, bunch, gap_s):
    """Return what a growing fleet measures whose starts take 60 s from an order; some fail."""
    random, orders = np.random.default_rng(seed), 600
    ends = []  # (serving since, created)
    for number in range(orders):
        created_s = number // bunch * gap_s
        while True:
            started_s = created_s + 60 * math.exp(0.3 * random.standard_normal())
            if random.random() >= 0.02:
                break
            created_s = started_s
        ends.append((started_s, created_s))
    ends.sort()
    starts, ready = StartTimes(), 0
    for now_s in range(-1, int(ends[-1][0]) + 2):
        while ready < orders and ends[ready][0] <= now_s:
            serving_s, created_s = ends[ready]
            starts.observe(f"r{ready}", serving_s - created_s, serving_since_s=serving_s)
            ready += 1
        ordered = max(ready, min(orders, (now_s // gap_s + 1) * bunch))
        starts.track(now_s, ordered=ordered, ready=ready)
    return starts.horizon_s


@pytest.mark.parametrize(("bunch", "gap_s"), [(1, 10), (5, 30)])
def test_fast_starts_that_overtake_older_orders_count_as_well(bunch, gap_s):
    """Only starts that filled the oldest open order counted: 70 s were measured, and not 60 s."""
    measured = [measured_s(seed, bunch, gap_s) for seed in range(8)]
    assert np.median(measured) == pytest.approx(60.0, rel=0.03)
    assert measured == pytest.approx([60.0] * 8, rel=0.12)
