"""The truncated decision process and its two solvers, in the setting of arXiv 2301.12865."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.objective import Weights
from policy.profile import Profile
from policy.solvers.reference.methods import (
    TruncatedSolution,
    policy_iteration,
    value_iteration,
)
from policy.solvers.reference.truncated import TruncatedSmdp
from tests.support.profiles import GOOGLENET_P4


def paper_smdp(max_queue_length, overflow_cost):
    return TruncatedSmdp(
        GOOGLENET_P4,
        0.9 * GOOGLENET_P4.capacity_per_s,
        Weights(1, 1),
        max_queue_length,
        overflow_cost,
    )


@pytest.mark.parametrize("max_queue_length", [177, 190, 191])
def test_the_cost_of_waiting_for_ever_is_that_of_the_overflow_state(max_queue_length):
    """The stationary probabilities, near 1e-14 here, gave 66.488, 63.04 and 69.13."""
    smdp = paper_smdp(max_queue_length, 0.0)
    actions = np.minimum(np.append(np.arange(max_queue_length + 1), max_queue_length), 32)
    actions[:7] = 0
    actions[-1] = 0
    # s_max requests wait, at a cost of 1/λ each, where λ is 0.9 * 32 / 10.8152 per ms.
    cost = max_queue_length * 10.8152 / 28.8
    waits = TruncatedSolution(smdp, actions, 0)
    assert waits.average_cost == pytest.approx(cost, rel=1e-12)
    assert waits.overflow_cost_per_ms == pytest.approx(cost, rel=1e-12)


def test_an_unfinished_relative_value_iteration_recommends_never_to_serve():
    """As in the paper's Table I, where 10,000 sweeps decide which queue suffices."""
    smdp = paper_smdp(60, 50.0)
    unfinished = value_iteration(smdp, max_sweeps=100)
    assert (unfinished.rounds, unfinished.policy) == (100, None)
    finished = value_iteration(smdp)
    assert finished.rounds > 100
    assert finished.policy is not None
    # Table I of arXiv 2301.12865: 70 states and an overflow cost of 100 suffice.
    assert value_iteration(paper_smdp(70, 1e2)).rounds == 1482


@settings(max_examples=25)
@given(
    steps=st.lists(st.floats(0, 2), min_size=0, max_size=7),
    fixed=st.floats(0.5, 2),
    load=st.floats(0.1, 0.8),
    energy_weight=st.floats(0, 10),
)
def test_both_solvers_agree(steps, fixed, load, energy_weight):
    latency_ms = fixed + np.cumsum([0, *steps])
    profile = Profile("m", "d", latency_ms, 3 + np.arange(latency_ms.size))
    smdp = TruncatedSmdp(profile, load * profile.capacity_per_s, Weights(1, energy_weight), 60, 1e5)
    by_policy = policy_iteration(smdp)
    by_value = value_iteration(smdp, span=1e-6, max_sweeps=1_000_000)
    # The actions may differ where they tie, but not what they cost.
    assert by_value.average_cost == pytest.approx(by_policy.average_cost, abs=1e-5)
