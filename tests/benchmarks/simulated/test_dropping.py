import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated.dropping import LATENCIES_MS, compare


@pytest.mark.slow
@settings(max_examples=6)
@given(order=st.permutations([*LATENCIES_MS]), overload=st.floats(1.2, 3.0))
def test_whatever_the_order_and_the_overload_nearly_all_that_can_be_answered_is(order, overload):
    goodput = compare(order, 0.4, overload, 20.0)
    assert 0.95 < goodput["ours"] < 1.05
    assert 0.95 < goodput["proactive"] < 1.05
    assert goodput["reactive"] < goodput["ours"] + 0.02


@pytest.mark.slow
@settings(max_examples=3)
@given(order=st.permutations([*LATENCIES_MS]))
def test_without_overload_nobody_drops(order):
    assert all(0.45 < goodput < 0.55 for goodput in compare(order, 0.4, 0.5, 20.0).values())
