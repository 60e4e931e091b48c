import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.controller import Autoscaler
from autoscaler.decision import FleetState
from autoscaler.reports import ReplicaReport
from autoscaler.settings import AutoscalerSettings
from autoscaler.standbys import StandbyAutoscaler, TwoTierStarts, standby_risk
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
    return ReplicaReport(
        f"replica-{replica}",
        now_s,
        offered_total=rate_per_s * now_s,
        refused_total=0.0,
        completed_total=rate_per_s * now_s,
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
    settings = AutoscalerSettings(window_s=5, hold_s=20, risk=0.02)
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
