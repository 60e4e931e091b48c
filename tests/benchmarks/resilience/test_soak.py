"""The slope of a process's memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.resilience.soak import growth_mib_per_h


@given(
    start_s=st.floats(0, 1e6),
    first=st.floats(0, 1e9),
    mib_per_h=st.floats(-100, 100),
    count=st.integers(3, 50),
)
def test_a_steady_growth_is_found(
    start_s: float, first: float, mib_per_h: float, count: int
) -> None:
    times_s = [start_s + 5 * number for number in range(count)]
    used = [first + mib_per_h * (1 << 20) / 3600 * (time_s - start_s) for time_s in times_s]
    assert growth_mib_per_h(times_s, used) == pytest.approx(mib_per_h, abs=0.01)
