import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.decision import Decision
from autoscaler.ray_adapter import SojournAutoscalingPolicy
from autoscaler.shared_budget import CLAIM_LASTS_S, Claim, SharedBudget, share_budget
from policy.errors import InvalidInputError
from tests.support.autoscaling.ray_contexts import Offered, context, keep_in_memory
from tests.support.autoscaling.stores import Store


@st.composite
def some_claims(draw):
    claims = []
    for number in range(draw(st.integers(1, 4))):
        least = draw(st.integers(0, 3))
        wanted = draw(st.integers(least, 30))
        claims.append(Claim(f"d{number}", least, wanted, draw(st.integers(0, 30))))
    return claims


@given(claims=some_claims(), more=st.integers(0, 60))
def test_the_budget_is_spent_within_all_bounds_whatever_the_order(claims: list[Claim], more):
    budget = sum(claim.min_replicas for claim in claims) + more
    shares = share_budget(claims, budget)
    wanted = sum(claim.wanted_replicas for claim in claims)
    assert sum(shares.values()) == min(budget, wanted)
    for claim in claims:
        assert claim.min_replicas <= shares[claim.name] <= claim.wanted_replicas
    assert share_budget(claims[::-1], budget) == shares


@given(claims=some_claims(), more=st.integers(0, 60))
def test_a_larger_budget_takes_no_replica_away(claims: list[Claim], more):
    budget = sum(claim.min_replicas for claim in claims) + more
    smaller, larger = share_budget(claims, budget), share_budget(claims, budget + 1)
    assert all(smaller[name] <= larger[name] for name in smaller)


@given(wanted=st.lists(st.integers(1, 40), min_size=2, max_size=4), data=st.data())
def test_shares_are_proportional_to_what_is_wanted(wanted, data):
    """No deployment has a smaller part of what it wants than another with a replica fewer."""
    budget = data.draw(st.integers(0, sum(wanted) - 1))
    claims = [Claim(f"d{number}", 0, each) for number, each in enumerate(wanted)]
    shares = list(share_budget(claims, budget).values())
    for least, one in zip(shares, wanted, strict=True):
        for share, other in zip(shares, wanted, strict=True):
            assert (share - 1) / other <= (least + 1) / one or share == 0


def test_no_replica_moves_for_a_fluctuating_forecast():
    def shares(wanted, held):
        first = Claim("first", 1, wanted, held_replicas=held)
        second = Claim("second", 1, 10, held_replicas=10 - held)
        return share_budget([first, second], 10)["first"]

    assert [shares(wanted, 5) for wanted in (8, 10, 13)] == [5, 5, 5]
    assert shares(20, 5) > 5


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch):
    keep_in_memory(monkeypatch, Store())


class Fleets:
    """Two deployments under one budget; ordered replicas are ready at once."""

    def __init__(self, budget):
        self.policies = {
            name: SojournAutoscalingPolicy(replica_budget=budget) for name in ("First", "Second")
        }
        self.targets = {"First": 1, "Second": 1}
        self.most_together = 0
        self._offered = Offered()

    def run(self, seconds, rates_per_s, **given):
        for now_s in seconds:
            for name, policy in self.policies.items():
                self.targets[name], _ = policy(
                    context(
                        self._offered,
                        name,
                        now_s=now_s,
                        rate_per_s=rates_per_s[name],
                        target=self.targets[name],
                        **given.get(name, {}),
                    )
                )
                self.most_together = max(self.most_together, sum(self.targets.values()))
        return self.targets


def test_a_deployment_without_reports_keeps_its_replicas_in_a_shortage():
    fleets = Fleets(5)
    fleets.run(range(1000, 1020), {"First": 100, "Second": 250})
    silent = {"Second": {"running": 0}}
    held = fleets.run(range(1020, 1035), {"First": 100, "Second": 250}, **silent)["Second"]
    assert held > 1
    targets = fleets.run(range(1035, 1060), {"First": 900, "Second": 250}, **silent)
    assert targets["Second"] == held
    assert sum(targets.values()) <= 5


def test_a_dry_run_keeps_its_share_of_the_budget():
    fleets = Fleets(4)
    fleets.targets["Second"] = 2
    dry = {"Second": {"dry_run": True}}
    targets = fleets.run(range(1000, 1020), {"First": 900, "Second": 0}, **dry)
    assert targets == {"First": 2, "Second": 2}


def test_a_replica_that_ray_starts_counts_towards_the_budget():
    fleets = Fleets(3)
    fleets.targets = {"First": 3, "Second": 0}
    waking = {"Second": {"running": 0, "waiting": 2.0, "min_replicas": 0}}
    targets = fleets.run(range(1000, 1002), {"First": 900, "Second": 0}, **waking)
    assert targets == {"First": 2, "Second": 1}


def test_minima_above_the_budget_are_granted():
    minima = {"First": {"min_replicas": 2}, "Second": {"min_replicas": 2}}
    targets = Fleets(3).run(range(1000, 1020), {"First": 900, "Second": 0}, **minima)
    assert targets == {"First": 2, "Second": 2}


@pytest.mark.parametrize("budget", [0, 2.5, True])
def test_an_invalid_budget_is_refused(budget):
    with pytest.raises(InvalidInputError, match="replica_budget: must be a whole number"):
        SojournAutoscalingPolicy(replica_budget=budget)


@pytest.mark.slow
def test_the_budget_is_kept_while_replicas_move():
    """What one deployment gives up, the other gets only once it is free."""
    fleets = Fleets(6)
    fleets.run(range(1000, 1060), {"First": 900, "Second": 50})
    assert fleets.targets == {"First": 5, "Second": 1}
    fleets.run(range(1060, 1240), {"First": 50, "Second": 900})
    assert fleets.targets == {"First": 1, "Second": 5}
    assert fleets.most_together <= 6


def decided(budget: SharedBudget, now_s, name, named, wanted, held=1):
    claim = Claim(name, 1, wanted, held)
    return budget.decide(now_s, claim, named, Decision(wanted, "load"))


def test_the_least_budget_counts_and_the_reason_says_so():
    budget = SharedBudget()
    decided(budget, 0.0, "a", 9, 1)
    decision = decided(budget, 0.0, "b", 4, 5)
    assert decision.replicas == 3
    assert decision.reason == "3 of 5 wanted, within a budget of 4; load"


def test_a_deployment_that_is_gone_claims_nothing():
    budget = SharedBudget()
    decided(budget, 0.0, "gone", 4, 3, held=3)
    assert decided(budget, 1.0, "here", 4, 4).replicas == 1
    assert decided(budget, CLAIM_LASTS_S + 1.0, "here", 4, 4).replicas == 4
