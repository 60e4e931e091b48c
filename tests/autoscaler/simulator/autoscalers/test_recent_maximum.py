from hypothesis import given
from hypothesis import strategies as st

from autoscaler.simulator.autoscalers.recent_maximum import RecentMaximum


@given(
    st.floats(0, 20),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=30),
)
def test_it_is_the_highest_of_all_values_that_are_not_too_old(length_s, steps) -> None:
    maximum, seen, now_s = RecentMaximum(length_s), [], 0
    for gap_s, value in steps:
        now_s += gap_s
        seen.append((now_s, value))
        highest = max(number for at_s, number in seen if now_s - at_s <= length_s)
        assert maximum.add(now_s, value) == highest
