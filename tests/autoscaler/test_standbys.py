import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.controller import Autoscaler
from autoscaler.decision import FleetState
from autoscaler.settings import AutoscalerSettings
from autoscaler.standbys import (
    PROMOTION_S,
    PUBLISH_AGAIN_AFTER_S,
    RolesPublisher,
    StandbyRoles,
    roles_key,
    standby_risk,
)
from tests.support.autoscaling.reports import report
from tests.support.autoscaling.stores import Store

SHARES = st.floats(0.001, 0.5)


@given(SHARES, st.floats(0.05, 1.0))
def test_the_risk_minimizes_the_expected_cost(risk, price):
    """The newsvendor, with a need that is uniform on [0, 1]."""
    shortage = (1 - risk) / risk
    best = standby_risk(risk, price)

    def cost(exceeded):
        """Return the mean cost of what is kept, and of what the need exceeds it by."""
        return price * (1 - exceeded) + (price + shortage) * exceeded**2 / 2

    assert cost(best) <= min(cost(0.9 * best), cost(min(1.0, 1.1 * best))) + 1e-12


class Live:
    """A fleet that follows its decisions at once, second by second, with standbys by settings.

    The load is shared by the replicas that serve, the first ones; each is given up to 2,370/s.
    """

    def __init__(self, most=100, start_s=10.0, **settings):
        self.autoscaler = Autoscaler()
        self.settings = AutoscalerSettings(window_s=5, scale_down_delay_s=10, **settings)
        self.second, self.serving, self.standbys = 0, 1, 0
        self.offered = [0.0] * 100
        self.most, self.start_s = most, start_s

    def run(self, seconds, rate_per_s, least=1):
        for _ in range(seconds):
            self.second += 1
            for number in range(self.serving):
                self.offered[number] += rate_per_s / self.serving
            reports = [
                report(
                    f"replica-{number}",
                    self.second,
                    self.offered[number],
                    settings=self.settings,
                    standby=float(number >= self.serving),
                    start_time_s=self.start_s,
                )
                for number in range(self.serving + self.standbys)
            ]
            self.autoscaler.observe(reports, self.second)
            bounds = (least, self.most)
            fleet = FleetState(
                self.serving, *bounds, self.serving, 0.0, self.standbys, self.standbys
            )
            decision = self.autoscaler.decide(self.second, fleet)
            self.serving, self.standbys = decision.replicas, decision.standbys
        return decision


def test_a_number_of_standbys_is_kept_beside_what_serves():
    fleet = Live(standbys=2)
    decision = fleet.run(30, 500)
    assert (decision.replicas, decision.standbys) == (1, 2)
    assert decision.reason.startswith("1 serving, 2 on standby; ")
    assert (decision.silent_replicas, decision.stuck_replicas) == (0, 0)
    assert decision.arrival_rate_per_s == pytest.approx(500, rel=0.05)
    more = fleet.run(5, 3000)
    assert more.replicas > 1
    assert more.standbys == 2


def test_max_replicas_bounds_replicas_and_standbys_together():
    fleet = Live(most=3, standbys=2)
    fleet.run(30, 500)
    decision = fleet.run(10, 9000)
    assert (decision.replicas, decision.standbys) == (3, 0)
    assert "max_replicas leaves no room for 2" in decision.reason


@pytest.mark.slow
def test_an_automatic_reserve_covers_what_a_cold_start_would_be_late_for():
    reserve = Live(standbys="auto", start_s=300.0, risk=0.02)
    cold = Live(start_s=300.0, risk=0.02)
    for _ in range(4):
        for fleet in (reserve, cold):
            fleet.run(200, 12_000)
            fleet.run(60, 24_000)
    for fleet in (reserve, cold):
        fleet.run(200, 12_000)
    assert reserve.standbys > 0
    assert reserve.serving < cold.serving


def test_standbys_end_with_the_setting_and_the_horizon_is_that_of_starts_again():
    fleet = Live(standbys=1)
    decision = fleet.run(20, 500)
    assert decision.horizon_s == PROMOTION_S
    fleet.settings = AutoscalerSettings(window_s=5, scale_down_delay_s=10)
    decision = fleet.run(5, 500)
    assert (decision.standbys, decision.horizon_s) == (0, 10.0)
    assert fleet.autoscaler.snapshot()()["total"] is None


def test_a_new_controller_goes_on_with_both_tiers():
    fleet = Live(standbys=2)
    before = fleet.run(60, 2500)
    restarted = Autoscaler()
    restarted.load_state(fleet.autoscaler.snapshot()())
    assert restarted.settings == fleet.settings
    fleet.autoscaler = restarted
    after = fleet.run(8, 2500)
    assert (after.replicas, after.standbys) == (before.replicas, before.standbys)
    assert after.demand_per_s == pytest.approx(before.demand_per_s, rel=0.1)


NAMES = [f"r{number}" for number in range(6)]
#: What may happen before a decision: these replicas run, so many are to serve and to stand by.
STEPS = st.lists(
    st.tuples(st.lists(st.sampled_from(NAMES), unique=True), st.integers(0, 6), st.integers(0, 3)),
    max_size=12,
)


@given(STEPS)
def test_as_many_serve_as_decided_or_as_run_and_one_at_least(steps):
    roles = StandbyRoles()
    for running, replicas, standbys in steps:
        before, roles = roles, roles.divided(running, replicas, standbys)
        serving = [one for one in running if not roles.stands_by(one)]
        assert len(serving) == min(len(running), max(1, replicas))
        assert sorted(roles.serving + roles.standbys) == sorted(running)
        # None is promoted while another is demoted.
        promoted = {one for one in serving if before.stands_by(one)}
        demoted = {one for one in roles.standbys if not before.stands_by(one)}
        assert not (promoted and demoted)
        assert roles.divided(running, replicas, standbys) == roles


@given(STEPS)
def test_a_newcomer_stands_by_only_if_enough_serve(steps):
    roles = StandbyRoles()
    for running, replicas, standbys in steps:
        roles = roles.divided(running, replicas, standbys)
        assert not roles.stands_by("newcomer") or (standbys and len(roles.serving) >= replicas)


@given(st.integers(0, 1 << 60), st.integers(0, 9), st.lists(st.sampled_from(NAMES)), st.booleans())
def test_published_roles_are_read_back(number, ordered, names, stand_by):
    roles = StandbyRoles(
        number, ordered, tuple(names), tuple(reversed(names)), newcomers_stand_by=stand_by
    )
    assert StandbyRoles.from_bytes(roles.to_bytes()) == roles


@pytest.mark.parametrize("content", [None, b"{", b"[]", b'{"number": 1}'])
def test_roles_that_cannot_be_read_are_none(content):
    assert StandbyRoles.from_bytes(content) is None


def published(store: Store):
    return StandbyRoles.from_bytes(store.kept.get(roles_key("shop", "Model")))


def publisher(store: Store):
    made = RolesPublisher("shop", "Model", store)
    store.answer()
    assert made.is_loaded()
    return made


def reports_of(now_s, **standby):
    return [report(name, now_s, 0.0, standby=float(on)) for name, on in standby.items()]


def test_roles_are_published_from_the_first_standby_to_the_last():
    store = Store()
    roles = publisher(store)
    roles.publish(1.0, ["a"], 1, 0)
    assert published(store) is None
    roles.publish(2.0, ["a"], 1, 1)
    assert published(store) == roles.roles
    assert roles.roles.stands_by("b")
    roles.publish(3.0, ["a", "b"], 1, 1)
    assert roles.standbys_of(["a", "b"]) == 1
    roles.publish(4.0, ["a", "b"], 1, 0)
    assert not published(store).newcomers_stand_by
    roles.publish(5.0, ["a"], 1, 0)
    assert published(store).standbys == ()
    assert store.saves == 4


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_new_controller_counts_on(is_kept):
    """Also if it cannot read what was published, by a clock that goes on."""
    store = Store()
    first = publisher(store)
    first.publish(1000.0, ["a", "b"], 1, 1)
    first.publish(1001.0, ["a", "b"], 2, 0)
    number = first.roles.number
    if not is_kept:
        store.kept.clear()
    second = publisher(store)
    assert second.roles == (first.roles if is_kept else StandbyRoles())
    second.publish(1002.0, ["a", "b"], 1, 1)
    assert second.roles.number > number


def test_a_publication_outlives_a_clock_set_back():
    roles = publisher(Store())
    roles.publish(2000.0, ["a", "b"], 1, 1)
    number = roles.roles.number
    roles.publish(1000.0, ["a", "b"], 2, 0)
    assert roles.roles.number > number


@pytest.mark.parametrize(
    ("reported", "is_published_again"),
    [
        ({"a": False, "b": True}, False),
        ({"a": False, "b": False}, True),
        ({"a": True, "b": True}, True),
        # One hangs, or has just died, and the standby has stepped in.
        ({"b": False}, False),
        ({}, False),
    ],
)
def test_roles_that_are_not_followed_are_published_again(reported, is_published_again):
    store = Store()
    roles = publisher(store)
    roles.publish(1000.0, ["a", "b"], 1, 1)
    number = roles.roles.number
    soon_s = 1000.0 + PUBLISH_AGAIN_AFTER_S - 1
    roles.publish(soon_s, ["a", "b"], 1, 1, reports_of(soon_s, **reported))
    assert roles.roles.number == number
    late_s = 1000.0 + PUBLISH_AGAIN_AFTER_S + 1
    roles.publish(late_s, ["a", "b"], 1, 1, reports_of(1000.0, **reported))
    assert roles.roles.number == number
    roles.publish(late_s, ["a", "b"], 1, 1, reports_of(late_s, **reported))
    assert (roles.roles.number > number) == is_published_again
    assert published(store) == roles.roles
