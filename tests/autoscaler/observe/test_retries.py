import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.observe.retries import given_up_share, offered_requests, retries_among


def test_the_only_replica_is_tried_once():
    assert retries_among([0.3, 1.0, 2.0, 7.0], 5).tolist() == [0, 0, 5, 5]
    requests = offered_requests([60.0, 60.0], [60.0, 60.0], [0.0, 0.0], retries_among([1, 2], 5))
    assert requests == pytest.approx([60.0, 10.0])


@given(st.floats(1, 1e6), st.floats(0, 1), st.integers(0, 20))
def test_between_what_was_accepted_and_what_was_tried(attempts, p, retries):
    requests = float(offered_requests(attempts, p * attempts, 0.0, retries))
    slack = 1e-6 * attempts
    assert attempts * (1 - p) - slack <= requests <= attempts + slack


@pytest.mark.parametrize(("retries", "refused_share"), [(1, 0.1), (3, 0.5), (5, 0.9)])
def test_against_simulated_retries(retries, refused_share):
    """Each request tries random replicas until one takes it or the retries run out."""
    rng = np.random.default_rng(11)
    requests = 40_000
    refused = rng.random((requests, retries + 1)) < refused_share
    # A request tries until the first try that is not refused.
    refusals = np.cumprod(refused, axis=1).sum(axis=1)
    attempts = np.minimum(refusals + 1, retries + 1)
    estimate = float(offered_requests(attempts.sum(), refusals.sum(), 0, retries))
    assert estimate == pytest.approx(requests, rel=0.01)
    given_up = float(given_up_share(attempts.sum(), refusals.sum(), 0, retries))
    assert given_up == pytest.approx(np.mean(refusals > retries), abs=0.005)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1), st.integers(0, 20))
def test_what_the_balancer_refuses_itself_is_one_request_each(attempts, denied, p, retries):
    counts = attempts + denied, p * attempts + denied, denied
    requests = float(offered_requests(*counts, retries))
    reached = float(offered_requests(attempts, p * attempts, 0.0, retries))
    assert requests == pytest.approx(reached + denied, rel=1e-3, abs=1e-3)
    lost = requests * float(given_up_share(*counts, retries))
    assert lost == pytest.approx(reached * p ** (retries + 1) + denied, rel=1e-3, abs=1e-2)
