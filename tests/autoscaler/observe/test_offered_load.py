from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.observe.offered_load import OfferedLoad
from tests.support.autoscaling.reports import report as replica_report

START_S = 1_700_000_000.0


def report(replica, time_s, offered, refused=0.0, counted_s=None):
    counted_s = 1000.0 + time_s if counted_s is None else counted_s
    counts = {"refused_total": refused, "counted_s": counted_s}
    return replica_report(replica, START_S + time_s, offered, **counts)


def rate(load, now_s, window_s=10.0, retries=5):
    history = load.history(START_S + now_s, window_s, retries)
    return None if history is None else history.current_per_s


def steady(load, replicas, per_s, begin_s, end_s, offset_s=0.0, offered=0.0):
    """Let replicas report every second, each `offset_s` after the one before."""
    for second in range(begin_s, end_s + 1):
        for number, replica in enumerate(replicas):
            count = offered + per_s * (second - begin_s)
            load.observe(report(replica, second + number * offset_s, count))


def test_there_is_no_rate_until_half_a_window_has_passed():
    load = OfferedLoad()
    assert rate(load, 0.0) is None
    steady(load, "a", 20.0, 0, 4)
    assert rate(load, 4.0) is None
    steady(load, "a", 20.0, 4, 5, offered=80.0)
    assert rate(load, 5.0) == pytest.approx(20.0)


@given(
    counts=st.lists(st.integers(0, 50), min_size=15, max_size=25),
    order=st.randoms(use_true_random=False),
)
def test_duplicates_and_disorder_change_nothing(counts, order):
    """Each arrival is counted once."""
    reports = [report("a", 0, 0.0)]
    for second, count in enumerate(counts, start=1):
        reports.append(report("a", second, reports[-1].offered_total + count))
    shuffled = reports[:1] + order.sample(reports[1:], len(counts)) + reports[::3] + reports[-1:]
    load = OfferedLoad()
    for one in shuffled:
        load.observe(one)
    window_s = float(len(counts))
    assert rate(load, len(counts), window_s) == pytest.approx(sum(counts) / window_s)


def test_restarted_counter_gives_no_negative_rate():
    load = OfferedLoad()
    steady(load, "a", 20.0, 0, 20)
    for second in range(21, 41):
        load.observe(report("a", second, 20.0 * (second - 20), counted_s=second - 20.0))
    assert rate(load, 22.0) == pytest.approx(20.0)
    history = load.history(START_S + 40, 10.0, 5)
    assert history.rates_per_s == pytest.approx(np.full(40, 20.0))


def test_after_a_gap_no_old_counts_come_back():
    """The seconds that are skipped had no counts."""
    load = OfferedLoad()
    steady(load, "a", 100.0, 0, 100)
    later = report("a", 2000.0, 10_000.0)
    load.observe(later)
    load.observe(replace(later, time_s=START_S + 2010.0, counted_s=3010.0))
    history = load.history(START_S + 2010, 10.0, 5)
    assert not history.rates_per_s.any()


def test_rates_that_are_known_are_left_out_and_nothing_else_changes():
    load, random = OfferedLoad(), np.random.default_rng(2)
    offered, refused = np.zeros(3), np.zeros(3)
    for second in range(100):
        tried = random.poisson(50.0, 3)
        offered, refused = offered + tried, refused + random.binomial(tried, 0.2 * (second > 50))
        for number in range(3):
            counts = float(offered[number]), float(refused[number])
            load.observe(report(f"r{number}", second + 0.1 * number, *counts))
    every = load.history(START_S + 99.5, 10.0, 5)
    assert every.rates_per_s.size > 90
    for known_s in (-50, 0, 60, 95, 99, 200):
        newer = load.history(START_S + 99.5, 10.0, 5, START_S + known_s)
        assert newer.current_per_s == every.current_per_s
        assert newer.end_s == every.end_s
        size = newer.rates_per_s.size
        assert newer.rates_per_s.tolist() == every.rates_per_s[-size:].tolist()
        assert size == min(every.rates_per_s.size, max(10, every.end_s - START_S - known_s))
        for name, values in vars(every.recent).items():
            assert getattr(newer.recent, name).tolist() == values.tolist()


SPANS = st.lists(
    st.tuples(st.floats(0.0, 500.0), st.floats(0.01, 90.0), st.integers(0, 10_000)),
    min_size=1,
    max_size=20,
)


@pytest.mark.slow
@given(SPANS)
def test_each_second_gets_its_share_of_every_span(spans):
    """The oracle integrates the rate of each replica's first report over the second."""
    load = OfferedLoad()
    load.observe(report("first", 0, 0.0, counted_s=1.0))
    load.observe(report("last", 595, 0.0, counted_s=1.0))
    expected = np.zeros(595)
    for number, (since_s, length_s, count) in enumerate(spans):
        until_s = since_s + length_s
        load.observe(report(f"r{number}", until_s, count, count / 2, counted_s=length_s))
        for second in range(595):
            covered_s = min(until_s, second + 1) - max(since_s, second)
            expected[second] += count * max(0.0, covered_s) / length_s
    history = load.history(START_S + 595, 10.0, 0)
    assert history.rates_per_s == pytest.approx(expected, abs=1e-2)


def test_a_standby_takes_no_share_of_the_load():
    load = OfferedLoad()
    for second in range(60):
        load.observe(report("a", second, 40.0 * second))
        load.observe(replace(report("b", second, 0.0), standby=1.0))
        load.expect(START_S + second, 1)
    history = load.history(START_S + 59, 10.0, 5)
    assert history.recent.replicas == pytest.approx(np.ones(5))


def test_a_replica_that_has_gone_is_not_missed_in_its_last_seconds():
    load = OfferedLoad()
    for second in range(60):
        for replica in "ab" if second < 56 else "a":
            load.observe(report(replica, second, 40.0 * second))
        load.expect(START_S + second, 2 if second < 58 else 1)
    history = load.history(START_S + 59, 10.0, 5)
    assert history.rates_per_s[-4:] == pytest.approx(np.full(4, 40.0))
