import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.counted_seconds import CountedSeconds

SPANS = st.lists(
    st.tuples(st.floats(0.0, 500.0), st.floats(0.01, 90.0), st.floats(0.0, 1e4)),
    min_size=1,
    max_size=20,
)


@pytest.mark.slow
@settings(derandomize=True, max_examples=60)
@given(SPANS)
def test_each_second_gets_its_share_of_every_span(spans):
    """The oracle integrates the rate of each span over the second."""
    counted = CountedSeconds()
    counted.advance(595)
    expected = np.zeros(596)
    for since_s, length_s, count in spans:
        counted.spread(since_s, since_s + length_s, count, count / 2, 0, count / 4)
        for second in range(596):
            covered_s = min(since_s + length_s, second + 1) - max(since_s, second)
            expected[second] += count * max(0.0, covered_s) / length_s
    attempts, refusals, _, finals = counted.between(0, 596)
    assert attempts == pytest.approx(expected, abs=1e-6)
    assert refusals == pytest.approx(expected / 2, abs=1e-6)
    assert finals == pytest.approx(expected / 4, abs=1e-6)


def test_a_silent_replica_has_the_share_of_the_others():
    counted = CountedSeconds()
    for second in range(100, 110):
        counted.expect(second, 3, 2)
        for _ in range(2):
            counted.spread(second, second + 1, 40.0, 8.0, oldest=100, finals=4.0)
    attempts, refusals, replicas, finals = counted.between(100, 110)
    assert attempts.tolist() == 10 * [120.0]
    assert refusals.tolist() == 10 * [24.0]
    assert finals.tolist() == 10 * [12.0]
    assert replicas.tolist() == 10 * [3.0]


def test_a_replica_that_has_gone_is_not_missed_in_its_last_seconds():
    counted = CountedSeconds()
    for second in range(100, 110):
        counted.expect(second, 2 if second < 109 else 1, 5)
        counted.spread(second, second + 1, 40.0, 0.0, oldest=100)
    assert counted.between(100, 110)[0].tolist() == 4 * [80.0] + 6 * [40.0]


def test_seconds_beyond_ten_minutes_are_forgotten():
    counted = CountedSeconds()
    counted.advance(100)
    counted.spread(100, 101, 7.0, 0.0, oldest=0)
    assert counted.between(100, 101)[0].sum() == 7.0
    counted.advance(700)
    assert counted.oldest == 101
    assert counted.between(101, 701)[0].sum() == 0.0
    restored = CountedSeconds.from_state(counted.state_dict())
    assert restored.head == 700
