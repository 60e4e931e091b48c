import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.history.traces import Trace
from autoscaler.simulator.experiments import with_history
from autoscaler.simulator.scenario import Scenario
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import BatchingSettings

PROFILE = Profile("m", "d", np.array([5.0, 6.0]))
EMPTY = Scenario(
    PROFILE,
    ServiceLevelObjective(100.0, 99.0),
    np.ones(1),
    batching=BatchingPolicy((0, 1, 2)),
    settings=BatchingSettings(max_queue_rows=8),
)


@given(
    begin_s=st.integers(0, 10**9), early_s=st.integers(-500, 500), step_s=st.sampled_from([1, 60])
)
def test_a_history_lies_before_the_run(begin_s, early_s, step_s):
    """On the clock of the trace if it ends before that begins, and else right before it."""
    trace = Trace(np.ones(10), 1, begin_s, False)
    past = Trace(np.arange(1.0, 6.0), step_s, begin_s - early_s - 5 * step_s, False)
    history = with_history(EMPTY, trace, past, scale=2.0).history
    assert history.end_s == (-early_s if early_s >= 0 else 0)
    assert (history.step_s, history.counts.tolist()) == (step_s, [2, 4, 6, 8, 10])


def test_a_history_is_superposed_with_noise_of_its_own():
    trace, past = (Trace(np.full(600, 50.0), 1, begin_s, False) for begin_s in (600, 0))
    history = with_history(EMPTY, trace, past, scale=20.0, superpose=True).history
    # 600 Poisson counts of mean 1000: to five standard errors.
    assert history.counts.mean() == pytest.approx(1000, abs=5 * np.sqrt(1000 / 600))
    assert history.counts.var() == pytest.approx(1000, abs=5 * 1000 * np.sqrt(2 / 600))


def test_unknown_seconds_cannot_be_scaled():
    trace = Trace(np.ones(10), 1, 0, False)
    with pytest.raises(InvalidInputError, match="second 0 must be known"):
        with_history(EMPTY, trace, Trace(np.array([np.nan, 1]), 1, 0, False), scale=1.0)
