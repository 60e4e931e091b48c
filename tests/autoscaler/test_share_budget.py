"""Shared budgets keep general laws, and match the optimum found by trying every sharing."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoscaler.reports import ReplicaReport
from autoscaler.shared_budget import Claim, service_level_by_replicas, share_budget
from policy.errors import InvalidInputError
from policy.load_lateness import LoadLatenessCurve

QUICK = settings(derandomize=True, max_examples=60, deadline=None, database=None)
TOLERANCE = 1e-9


def level(levels: Sequence[float]) -> Callable[[int], float]:
    return lambda replicas: levels[replicas]


def claim_of(name: str, demand_per_s: float, levels: Sequence[float], least: int = 0) -> Claim:
    """Make a claim that wants as many replicas as there are levels."""
    return Claim(name, demand_per_s, level(levels), min(least, len(levels) - 1), len(levels) - 1)


@st.composite
def some_claims(draw: st.DrawFn, concave: bool) -> list[Claim]:
    claims = []
    for number in range(draw(st.integers(1, 3))):
        gains = draw(st.lists(st.floats(0, 1), min_size=1, max_size=6))
        if concave:
            gains.sort(reverse=True)
        total = sum(gains) or 1.0
        levels = [0.0, *itertools.accumulate(gain / total for gain in gains)]
        demand_per_s = draw(st.floats(0.01, 1e4))
        claims.append(claim_of(f"d{number}", demand_per_s, levels, draw(st.integers(0, 2))))
    return claims


def late(claims: Sequence[Claim], shares: Sequence[int]) -> float:
    return sum(claim.late_per_s(share) for claim, share in zip(claims, shares, strict=True))


def best_late(claims: Sequence[Claim], budget: int) -> float:
    ranges = [range(claim.min_replicas, claim.wanted_replicas + 1) for claim in claims]
    fitting = (shares for shares in itertools.product(*ranges) if sum(shares) <= budget)
    return min(late(claims, shares) for shares in fitting)


def min_budget(claims: Sequence[Claim]) -> int:
    return sum(claim.min_replicas for claim in claims)


@QUICK
@given(claims=some_claims(concave=False), more=st.integers(0, 20))
def test_the_budget_is_spent_within_all_bounds(claims: list[Claim], more: int) -> None:
    budget = min_budget(claims) + more
    shares = share_budget(claims, budget)
    wanted = sum(claim.wanted_replicas for claim in claims)
    assert sum(shares.values()) == min(budget, wanted)
    for claim in claims:
        assert claim.min_replicas <= shares[claim.name] <= claim.wanted_replicas


@QUICK
@given(claims=some_claims(concave=True), more=st.integers(0, 20))
def test_with_concave_levels_the_sharing_is_optimal(claims: list[Claim], more: int) -> None:
    budget = min_budget(claims) + more
    got = late(claims, list(share_budget(claims, budget).values()))
    best = best_late(claims, budget)
    assert got <= best * (1 + TOLERANCE) + TOLERANCE


@QUICK
@given(claims=some_claims(concave=False), more=st.integers(0, 12))
def test_with_any_levels_the_sharing_is_within_one_step_of_the_optimum(
    claims: list[Claim], more: int
) -> None:
    budget = min_budget(claims) + more
    got = late(claims, list(share_budget(claims, budget).values()))
    step = max(claim.late_per_s(0) for claim in claims)
    assert got <= best_late(claims, budget) + step + TOLERANCE


@QUICK
@given(claims=some_claims(concave=False), more=st.integers(0, 12))
def test_a_larger_budget_never_makes_more_requests_late(claims: list[Claim], more: int) -> None:
    budget = min_budget(claims) + more
    smaller = late(claims, list(share_budget(claims, budget).values()))
    larger = late(claims, list(share_budget(claims, budget + 1).values()))
    assert larger <= smaller * (1 + TOLERANCE) + TOLERANCE


@QUICK
@given(claims=some_claims(concave=False), more=st.integers(0, 12))
def test_the_order_of_the_claims_does_not_matter(claims: list[Claim], more: int) -> None:
    assume(len({claim.demand_per_s for claim in claims}) == len(claims))
    budget = min_budget(claims) + more
    forward = late(claims, list(share_budget(claims, budget).values()))
    backward = share_budget(claims[::-1], budget)
    assert late(claims, [backward[claim.name] for claim in claims]) == pytest.approx(forward)


def test_replicas_that_only_help_together_are_given_together() -> None:
    """Handing them out one by one would see no gain in the first two."""
    overloaded = claim_of("overloaded", 100, [0.0, 0.0, 0.0, 1.0])
    other = claim_of("other", 100, [0.0, 0.1, 0.2, 0.3])
    assert share_budget([overloaded, other], 3) == {"overloaded": 3, "other": 0}


@pytest.mark.parametrize(("refusing", "busy"), [(True, 2), (False, 3)])
def test_two_replicas_that_refuse_by_time_are_worth_twice_one_where_neither_suffices(
    refusing: bool, busy: int
) -> None:
    """Both want three of four: one each would idle half of what the devices can answer."""
    overloads = LoadLatenessCurve.OVERLOADS
    late_shares = (*(10 * (0.0,)), 0.01, 0.08, 0.35, 0.72, 0.96, 0.99)
    levels = tuple(min(0.95, 1.09 / overload) for overload in overloads) if refusing else ()
    curve = LoadLatenessCurve(100.0, late_shares, overload_levels=levels)
    report = ReplicaReport("a", 0.0, 0, 0, 0, 0, 32, 300, 500, 99, **fields_of(curve))
    claims = [
        Claim(name, demand, service_level_by_replicas(demand, None, [report]), 1, 3)
        for name, demand in (("busy", 290.0), ("quiet", 250.0))
    ]
    assert share_budget(claims, 4) == {"busy": busy, "quiet": 4 - busy}


def fields_of(curve: LoadLatenessCurve) -> dict[str, Any]:
    return {
        "sla_rate_per_s": curve.sla_rate_per_s,
        "late_shares": curve.late_shares,
        "overload_levels": curve.overload_levels,
    }


def test_if_nothing_helps_the_replicas_follow_the_load() -> None:
    lost = [0.0] * 11
    shares = share_budget([claim_of("a", 300, lost), claim_of("b", 100, lost)], 8)
    assert shares == {"a": 6, "b": 2}


def test_no_replica_moves_for_a_fluctuating_forecast() -> None:
    levels = [0.0, 0.9, 0.99, 1.0]

    def shares(demand_per_s: float, held: int) -> dict[str, int]:
        first = Claim("first", demand_per_s, level(levels), 1, 3, held_replicas=held)
        second = Claim("second", 100, level(levels), 1, 3, held_replicas=3 - held)
        return share_budget([first, second], 3)

    for demand_per_s in (95, 105):
        for held in (1, 2):
            assert shares(demand_per_s, held)["first"] == held
    assert shares(130, 1)["first"] == 2


def test_a_budget_below_the_minima_is_refused() -> None:
    claim = claim_of("a", 1, [0.0, 0.5, 1.0], 2)
    with pytest.raises(InvalidInputError, match=r"must be at least 2.*not 1"):
        share_budget([claim], 1)


@pytest.mark.parametrize(("demand_per_s", "least", "wanted"), [(-1, 0, 1), (1, 2, 1), (1, -1, 1)])
def test_a_claim_that_contradicts_itself_is_refused(
    demand_per_s: float, least: int, wanted: int
) -> None:
    with pytest.raises(InvalidInputError, match="must be at least"):
        Claim("a", demand_per_s, level([0, 1]), least, wanted)
