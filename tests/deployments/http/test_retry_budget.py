"""Which refusals may be tried at another replica."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.http.retry_budget import ALL_UP_TO, NONE_FROM, RefusalsOfErrors, RetryBudget

TRIES = 6


def allowed_share(refused_elsewhere: float, refusals: int = 400) -> float:
    budget = RetryBudget()
    budget.refused_elsewhere = refused_elsewhere
    return sum(budget.take(1) for _ in range(refusals)) / refusals


@pytest.mark.parametrize(
    ("refused_elsewhere", "share"),
    [(0, 1), (ALL_UP_TO, 1), ((ALL_UP_TO + NONE_FROM) / 2, 0.5), (NONE_FROM, 0), (1, 0)],
)
def test_the_share_that_is_allowed(refused_elsewhere: float, share: float) -> None:
    assert allowed_share(refused_elsewhere) == pytest.approx(share, abs=5e-3)


@given(st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_the_more_is_refused_elsewhere_the_fewer_are_allowed(shares: tuple[float, float]) -> None:
    low, high = sorted(shares)
    assert allowed_share(low, 200) >= allowed_share(high, 200) - 0.01


@settings(max_examples=25)
@given(st.floats(1.01, 10))
def test_an_overload_costs_at_most_two_refusals_for_each_answer_that_it_turns_away(
    load: float,
) -> None:
    """With independent tries, at the fixed point of the share that a try is refused."""

    def refused(share: float) -> float:
        again = share * allowed_share(share, 100)
        tries = sum(again**n for n in range(TRIES))
        return max(0.0, 1 - 1 / (load * tries)) - share

    low, high = 0.0, 1.0
    for _ in range(14):  # `refused` falls
        middle = (low + high) / 2
        low, high = (middle, high) if refused(middle) > 0 else (low, middle)
    for_each_answer = low / (1 - low)
    assert for_each_answer < max(2.0, 1.2 * (load - 1) + 0.5)


def test_the_share_of_refusals_among_errors_is_that_of_the_last_seconds() -> None:
    refusals, answers = RefusalsOfErrors(), Counter({200: 50, 404: 3})
    assert refusals.take(answers) == 1, "nothing is known"
    answers.update({500: 20, 504: 10, 503: 10, 429: 5})
    assert refusals.take(answers) == pytest.approx(10 / 40)
    answers.update({503: 60})
    assert refusals.take(answers) == pytest.approx(65 / 80)
    for _ in range(7):
        refusals.take(answers)
    assert refusals.take(answers) == 1, "it is forgotten"


def test_a_fleet_that_keeps_its_sla_is_not_bound() -> None:
    """At the share from which on retries are withheld, six tries fail for more than 1%."""
    assert ALL_UP_TO**TRIES > 0.01
    assert math.isclose(allowed_share(0.01 ** (1 / TRIES)), 1.0)
