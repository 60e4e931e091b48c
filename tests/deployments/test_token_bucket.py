import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.token_bucket import TokenBucket

# Floating-point arithmetic with these is exact.
rates = st.integers(-3, 6).map(lambda exponent: 2.0**exponent)
bursts = st.integers(1, 20).map(float)
gaps = st.lists(st.integers(0, 200).map(lambda ticks: ticks / 64), min_size=1, max_size=30)


@given(rates, bursts, gaps)
def test_never_more_than_the_rate_and_the_burst_allow(rate, burst, waits):
    bucket, now_s, taken = TokenBucket(rate, burst), 5.0, []
    for wait_s in waits:
        now_s += wait_s
        if bucket.take(now_s):
            taken.append(now_s)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            allowed = burst + rate * (taken[last] - taken[first])
            assert last - first + 1 <= allowed


@pytest.mark.slow
@given(rates, bursts, gaps)
def test_what_is_refused_may_happen_after_the_wait_and_not_before(rate, burst, waits):
    bucket, now_s = TokenBucket(rate, burst), 0.0
    for wait_s in waits:
        now_s += wait_s
        while bucket.take(now_s):
            pass
        needed_s = bucket.wait_s(now_s)
        assert needed_s > 0
        assert not bucket.take(now_s + 0.5 * needed_s)
        now_s += needed_s
        assert bucket.wait_s(now_s) == 0
        assert bucket.take(now_s)


def test_a_clock_that_goes_back_gives_nothing_away():
    bucket = TokenBucket(1.0, 1.0)
    assert bucket.take(10.0)
    assert not bucket.take(5.0)
    assert not bucket.take(10.5)
    assert bucket.take(11.0)


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_resized_bucket_is_as_full_as_before(factor):
    bucket = TokenBucket(10.0, 8.0)
    for _ in range(4):
        assert bucket.take(0.0)
    bucket.resize(10.0 * factor, 8.0 * factor, 0.0)
    left = 0
    while bucket.take(0.0):
        left += 1
    assert left == 4 * factor
