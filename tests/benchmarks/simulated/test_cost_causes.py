import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.decision import Decision
from benchmarks.simulated.cost_causes import causes, highest_ahead

SLA_RATE_PER_S = 10.0
decisions = st.builds(
    Decision,
    replicas=st.integers(1, 9),
    reason=st.just(""),
    required_replicas=st.integers(1, 9),
    demand_per_s=st.none() | st.floats(0, 90),
    sla_rate_per_s=st.none() | st.just(SLA_RATE_PER_S),
)


@given(st.lists(decisions, min_size=1, max_size=100), st.integers(0, 30))
def test_the_causes_add_up_to_what_was_ordered(made, start_time_s):
    counts = np.arange(len(made), dtype=float)
    found = causes(made, counts, 0.01, start_time_s, oracle_s=2.0)
    assert found.ordered == pytest.approx(sum(one.replicas for one in made) / 2.0)
    assert found.short <= 0 <= found.beyond


def test_each_cause_has_its_part():
    """Before the jump to 50/s a perfect forecast asks for 5 replicas from a start ahead of it."""
    counts = np.repeat([20.0, 50.0], 100)
    steady = Decision(4, "", required_replicas=3, demand_per_s=25.0, sla_rate_per_s=SLA_RATE_PER_S)
    found = causes([steady] * 200, counts, 0.0, 10, oracle_s=1.0)
    assert found.need == pytest.approx(90 * 2 + 110 * 5)
    assert found.beyond == pytest.approx(90 * 0.5)
    assert found.short == pytest.approx(110 * -2.5)
    assert found.rounding == pytest.approx(200 * 0.5)
    assert found.kept == pytest.approx(200 * 1)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.integers(0, 60))
def test_the_highest_ahead(values, steps):
    expected = [max(values[index : index + steps + 1]) for index in range(len(values))]
    assert highest_ahead(np.array(values), steps).tolist() == expected
