"""Shares of a budget keep the bounds of all claims, and are proportional to what is wanted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.shared_budget import Claim, share_budget
from policy.errors import InvalidInputError

QUICK = settings(derandomize=True, max_examples=60, deadline=None, database=None)


@st.composite
def some_claims(draw: st.DrawFn) -> list[Claim]:
    claims = []
    for number in range(draw(st.integers(1, 4))):
        least = draw(st.integers(0, 3))
        wanted = draw(st.integers(least, 30))
        claims.append(Claim(f"d{number}", least, wanted, draw(st.integers(0, 30))))
    return claims


@QUICK
@given(claims=some_claims(), more=st.integers(0, 60))
def test_the_budget_is_spent_within_all_bounds_whatever_the_order(
    claims: list[Claim], more: int
) -> None:
    budget = sum(claim.min_replicas for claim in claims) + more
    shares = share_budget(claims, budget)
    wanted = sum(claim.wanted_replicas for claim in claims)
    assert sum(shares.values()) == min(budget, wanted)
    for claim in claims:
        assert claim.min_replicas <= shares[claim.name] <= claim.wanted_replicas
    assert share_budget(claims[::-1], budget) == shares


@QUICK
@given(claims=some_claims(), more=st.integers(0, 60))
def test_a_larger_budget_takes_no_replica_away(claims: list[Claim], more: int) -> None:
    budget = sum(claim.min_replicas for claim in claims) + more
    smaller, larger = share_budget(claims, budget), share_budget(claims, budget + 1)
    assert all(smaller[name] <= larger[name] for name in smaller)


@QUICK
@given(wanted=st.lists(st.integers(1, 40), min_size=2, max_size=4), data=st.data())
def test_shares_are_proportional_to_what_is_wanted(wanted: list[int], data: st.DataObject) -> None:
    """No deployment has a smaller part of what it wants than another with a replica fewer."""
    budget = data.draw(st.integers(0, sum(wanted) - 1))
    claims = [Claim(f"d{number}", 0, each) for number, each in enumerate(wanted)]
    shares = list(share_budget(claims, budget).values())
    for least, one in zip(shares, wanted, strict=True):
        for share, other in zip(shares, wanted, strict=True):
            assert (share - 1) / other <= (least + 1) / one or share == 0


def test_no_replica_moves_for_a_fluctuating_forecast() -> None:
    def shares(wanted: int, held: int) -> int:
        first = Claim("first", 1, wanted, held_replicas=held)
        second = Claim("second", 1, 10, held_replicas=10 - held)
        return share_budget([first, second], 10)["first"]

    assert [shares(wanted, 5) for wanted in (9, 10, 11)] == [5, 5, 5]
    assert shares(20, 5) > 5


def test_a_budget_below_the_minima_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"must be at least 2.*not 1"):
        share_budget([Claim("a", 2, 2)], 1)


@pytest.mark.parametrize(("least", "wanted"), [(2, 1), (-1, 1)])
def test_a_claim_that_contradicts_itself_is_refused(least: int, wanted: int) -> None:
    with pytest.raises(InvalidInputError, match="must be at least"):
        Claim("a", least, wanted)
