import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import expon

from autoscaler.sizing.equilibrium import rand_equilibrium
from autoscaler.sizing.rand import response_time_cdf, retried_response_time_cdf
from policy.errors import InvalidInputError

# d₁, d₂, Δ in ms.
DELAYS = (1.0, 2.0, 5.0)


def test_replicas_that_hold_one_request_give_theorem_2():
    """Such a replica is full a/(a + μ) of the time (Erlang's loss formula)."""
    service_rate_per_s = 10.0
    for rate in (1.0, 35.0, 70.0, 99.0):
        found = rand_equilibrium(rate, 10, lambda a: a / (a + service_rate_per_s))
        assert found.busy_probability == pytest.approx(rate / 100, rel=1e-9)
        assert found.attempt_rate_per_s == pytest.approx(rate / 10 / (1 - rate / 100))
        times = np.linspace(0, 500, 101)
        batching = retried_response_time_cdf(
            times, found.busy_probability, expon(scale=100).cdf, *DELAYS
        )
        theorem = response_time_cdf(times, rate, 10, 10.0, expon(scale=100).cdf, *DELAYS)
        assert batching == pytest.approx(theorem, abs=1e-9)


def test_replicas_that_never_refuse_share_the_load_evenly():
    found = rand_equilibrium(60.0, 4, lambda a: 0.0)
    assert (found.attempt_rate_per_s, found.busy_probability) == (15.0, 0.0)


def test_more_than_the_replicas_can_carry_is_an_overload():
    found = rand_equilibrium(120.0, 10, lambda a: a / (a + 10))
    assert (found.attempt_rate_per_s, found.busy_probability) == (math.inf, 1.0)


@given(rate=st.floats(0.1, 500), retries=st.integers(0, 8), places=st.sampled_from([1, 4, 32]))
def test_with_a_limit_of_retries_the_rate_of_tries_solves_the_equation(rate, retries, places):
    def full(a):
        """Erlang's loss formula for `places` servers of 10/s each."""
        inverse = 1.0
        for k in range(1, places + 1):
            inverse = 1.0 + k * 10.0 / a * inverse
        return 1 / inverse

    found = rand_equilibrium(rate, 2, full, retries)
    p = found.busy_probability
    assert found.attempt_rate_per_s == pytest.approx(
        rate / 2 * sum(p**k for k in range(retries + 1)), rel=1e-6
    )


def test_a_negative_limit_of_retries_is_refused():
    with pytest.raises(InvalidInputError, match=r"^retries: "):
        rand_equilibrium(1, 1, lambda a: 0.0, -1)
