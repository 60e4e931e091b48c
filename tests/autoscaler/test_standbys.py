from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.controller import Autoscaler
from autoscaler.decision import Decision, FleetState
from autoscaler.reports import ReplicaReport
from autoscaler.settings import AutoscalerSettings
from autoscaler.standbys import (
    PROMOTION_S,
    StandbyAutoscaler,
    TwoTierStarts,
    standby_risk,
)
from policy.errors import InvalidInputError

SHARES = st.floats(0.001, 0.5)


@given(SHARES, st.floats(0.01, 0.99))
def test_a_cheaper_standby_is_kept_for_what_is_less_likely(risk: float, price: float) -> None:
    assert 0 < standby_risk(risk, price) < risk
    assert standby_risk(risk, price / 2) < standby_risk(risk, price)


@given(SHARES)
def test_a_standby_at_the_price_of_a_replica_has_its_risk(risk: float) -> None:
    assert standby_risk(risk, 1.0) == pytest.approx(risk)


@settings(max_examples=30)
@given(SHARES, st.floats(0.05, 1.0))
def test_the_risk_minimizes_the_expected_cost(risk: float, price: float) -> None:
    """The newsvendor, with a need that is uniform on [0, 1]."""
    shortage = (1 - risk) / risk
    best = standby_risk(risk, price)

    def cost(exceeded: float) -> float:
        """Return the mean cost of what is kept, and of what the need exceeds it by."""
        return price * (1 - exceeded) + (price + shortage) * exceeded**2 / 2

    assert cost(best) <= min(cost(0.9 * best), cost(min(1.0, 1.1 * best))) + 1e-12


def report(replica: int, now_s: float, rate_per_s: float, **more: object) -> ReplicaReport:
    return counted(replica, now_s, rate_per_s * now_s, **more)


def counted(replica: int, now_s: float, offered: float, **more: object) -> ReplicaReport:
    return ReplicaReport(
        f"replica-{replica}",
        now_s,
        offered_total=offered,
        refused_total=0.0,
        completed_total=offered,
        queue_length=0.0,
        full_batch_size=32.0,
        full_batch_ms=10.8,
        sla_response_time_ms=50.0,
        sla_percentile=99.0,
        start_time_s=10.0,
        **more,
    )


def decided(starts: TwoTierStarts, **more: object) -> list[tuple[int, int]]:
    """Return replicas and standbys, second by second, under a load that steps up now and then."""
    settings = AutoscalerSettings(window_s=5, scale_down_delay_s=20, risk=0.02)
    autoscaler = StandbyAutoscaler(starts, settings)
    replicas, standbys, totals, found = 4, 0, 0.0, []
    for second in range(1, 900):
        totals += 9000.0 if second % 300 > 240 else 4500.0
        mean_per_s = totals / second / 4
        autoscaler.observe([report(n, second, mean_per_s, **more) for n in range(4)], second)
        decision = autoscaler.decide(second, FleetState(replicas, 1, 100, 4), standbys)
        replicas, standbys = decision.replicas, decision.standbys
        found.append((replicas, standbys))
    return found


@pytest.mark.slow
def test_standbys_cover_what_may_come_until_a_cold_start_could_serve() -> None:
    with_standbys = decided(TwoTierStarts(5.0, 300.0, 0.3))
    cold = decided(TwoTierStarts(5.0, 300.0, 1.0))
    assert all(standbys == 0 for _, standbys in cold)
    assert sum(standbys for _, standbys in with_standbys) > 0
    # What a cold start forces to be kept as replicas is kept as standbys, mostly.
    assert sum(r for r, _ in with_standbys) < sum(r for r, _ in cold)


def test_without_a_gain_there_are_no_standbys() -> None:
    assert not TwoTierStarts(5.0, 300.0, 1.0).pay
    assert not TwoTierStarts(60.0, 60.0, 0.3).pay
    assert TwoTierStarts(5.0, 60.0, 0.3).pay


def test_settings_in_reports_reach_both_tiers() -> None:
    autoscaler = StandbyAutoscaler(TwoTierStarts(5.0, 60.0, 0.3))
    autoscaler.observe([report(0, 1.0, 10.0, settings=AutoscalerSettings(risk=0.2))], 1.0)
    assert autoscaler.settings.risk == 0.2


def test_an_assumed_start_time_outlives_a_restart() -> None:
    autoscaler = Autoscaler()
    autoscaler.assume_start_time(123.0)
    restarted = Autoscaler()
    restarted.load_state(autoscaler.state_dict())
    decision = restarted.decide(1.0, FleetState(1, 1, 9))
    assert decision.horizon_s == 123.0


@pytest.mark.parametrize(
    ("standby_s", "cold_s", "price"),
    [(-1.0, 60.0, 0.3), (61.0, 60.0, 0.3), (5.0, float("inf"), 0.3), (5.0, 60.0, 0.0)],
)
def test_starts_out_of_range_are_rejected(standby_s: float, cold_s: float, price: float) -> None:
    with pytest.raises(InvalidInputError):
        TwoTierStarts(standby_s, cold_s, price)


class Live:
    """A fleet that follows its decisions at once, second by second, with standbys by settings.

    The load is shared by the replicas that serve, the first ones; each can take about 900/s.
    """

    def __init__(self, most: int = 100, start_s: float = 10.0, **settings: object) -> None:
        self.autoscaler = StandbyAutoscaler()
        self.settings = AutoscalerSettings(window_s=5, scale_down_delay_s=10, **settings)
        self.second, self.serving, self.standbys = 0, 1, 0
        self.offered = [0.0] * 100
        self.most, self.start_s = most, start_s

    def run(self, seconds: int, rate_per_s: float, least: int = 1) -> Decision:
        for _ in range(seconds):
            self.second += 1
            for number in range(self.serving):
                self.offered[number] += rate_per_s / self.serving
            reports = [
                replace(
                    counted(number, self.second, self.offered[number], settings=self.settings),
                    standby=float(number >= self.serving),
                    start_time_s=self.start_s,
                )
                for number in range(self.serving + self.standbys)
            ]
            self.autoscaler.observe(reports, self.second)
            fleet = FleetState(self.serving, least, self.most, self.serving)
            decision = self.autoscaler.decide(self.second, fleet, self.standbys, self.standbys)
            self.serving, self.standbys = decision.replicas, decision.standbys
        return decision


def test_a_number_of_standbys_is_kept_beside_what_serves() -> None:
    fleet = Live(standbys=2)
    decision = fleet.run(30, 500)
    assert (decision.replicas, decision.standbys) == (1, 2)
    assert decision.reason.startswith("1 serves, 2 stand by; ")
    assert (decision.silent_replicas, decision.stuck_replicas) == (0, 0)
    assert decision.arrival_rate_per_s == pytest.approx(500, rel=0.05)
    more = fleet.run(5, 3000)
    assert more.replicas > 1
    assert more.standbys == 2


def test_max_replicas_bounds_replicas_and_standbys_together() -> None:
    fleet = Live(most=3, standbys=2)
    fleet.run(30, 500)
    decision = fleet.run(10, 9000)
    assert (decision.replicas, decision.standbys) == (3, 0)
    assert "max_replicas leaves no room for 2" in decision.reason


def test_standbys_are_not_taken_for_replicas_that_serve_in_silence() -> None:
    """They would be taken to have the load of the others, and keep replicas from going."""
    fleet = Live(standbys=5)
    fleet.run(20, 3000)
    decision = fleet.run(200, 500)
    assert decision.silent_replicas == 0
    assert (decision.replicas, decision.standbys) == (1, 5)


def test_what_a_promoted_standby_counts_did_not_come_while_it_stood_by() -> None:
    fleet = Live(standbys=1)
    fleet.run(60, 500)
    assert fleet.run(20, 1500).replicas == 2
    rates = fleet.autoscaler.decide(fleet.second, FleetState(2, 1, 9, 2), 1, 1)
    assert rates.arrival_rate_per_s == pytest.approx(1500, rel=0.05)


@pytest.mark.slow
def test_by_price_a_reserve_covers_what_a_cold_start_would_be_late_for() -> None:
    cheap = Live(standbys="auto", standby_price=0.05, start_s=300.0, risk=0.02)
    cold = Live(start_s=300.0, risk=0.02)
    for _ in range(4):
        for fleet in (cheap, cold):
            fleet.run(200, 4500)
            fleet.run(60, 9000)
    assert cheap.standbys > 0
    assert cheap.serving < cold.serving


def test_at_the_price_of_a_replica_no_standby_is_kept() -> None:
    assert Live(standbys="auto", standby_price=1.0).run(30, 2000).standbys == 0


def test_standbys_end_with_the_setting_and_the_horizon_is_that_of_starts_again() -> None:
    fleet = Live(standbys=1)
    decision = fleet.run(20, 500)
    assert decision.horizon_s == PROMOTION_S
    fleet.settings = AutoscalerSettings(window_s=5, scale_down_delay_s=10)
    decision = fleet.run(5, 500)
    assert (decision.standbys, decision.horizon_s) == (0, 10.0)
    assert "all" not in fleet.autoscaler.state_dict()


def test_standbys_are_not_kept_where_they_may_not_be() -> None:
    fleet = Live(standbys=1)
    fleet.autoscaler.may_have_standbys = False
    assert fleet.run(20, 500).standbys == 0


def test_an_idle_fleet_at_zero_has_no_standbys() -> None:
    fleet = Live(standbys=1, scale_to_zero_delay_s=20)
    fleet.run(20, 100, least=0)
    decision = fleet.run(60, 0, least=0)
    assert (decision.replicas, decision.standbys) == (0, 0)


def test_a_new_controller_goes_on_with_both_tiers() -> None:
    fleet = Live(standbys=2)
    before = fleet.run(60, 2500)
    restarted = StandbyAutoscaler()
    restarted.load_state(fleet.autoscaler.state_dict())
    assert restarted.settings == fleet.settings
    fleet.autoscaler = restarted
    after = fleet.run(1, 2500)
    assert (after.replicas, after.standbys) == (before.replicas, before.standbys)
    assert after.demand_per_s == pytest.approx(before.demand_per_s, rel=0.1)


def test_a_state_of_another_form_changes_nothing() -> None:
    fleet = Live(standbys=2)
    fleet.run(20, 500)
    state = fleet.autoscaler.state_dict()
    with pytest.raises(InvalidInputError):
        fleet.autoscaler.load_state({**state, "all": {}})
    assert fleet.autoscaler.state_dict().keys() == state.keys()
