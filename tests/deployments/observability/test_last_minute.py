from hypothesis import given
from hypothesis import strategies as st

from deployments.observability.last_minute import WINDOW_S, LastMinute

steps = st.lists(st.tuples(st.floats(0.5, 30), st.integers(0, 9)), min_size=1, max_size=40)


@given(steps)
def test_the_growth_is_that_of_the_last_minute(steps):
    now_s, count = 100.0, 0
    minute, history = LastMinute(now_s), [(now_s, 0)]
    for wait_s, more in steps:
        now_s, count = now_s + wait_s, count + more
        minute.add(now_s, {"answered": count})
        history.append((now_s, count))
    first_s, first = next(one for one in history if one[0] >= now_s - WINDOW_S)
    assert minute.growth() == {"seconds": now_s - first_s, "answered": count - first}
