import copy
import json
import math
from dataclasses import replace

import pytest

from autoscaler.controller import Autoscaler
from autoscaler.decision import FleetState
from autoscaler.reports import bottleneck_to_floats
from policy.errors import InvalidInputError
from tests.support.autoscaling.reporting_fleet import (
    CURVE,
    PER_REPLICA,
    SETTINGS,
    START_S,
    Fleet,
    required_replicas,
)
from tests.support.autoscaling.reports import report


def decide(autoscaler, second, **given):
    fleet = {"current_replicas": 3, "min_replicas": 1, "max_replicas": 50, "ready_replicas": 1}
    return autoscaler.decide(START_S + second, FleetState(**{**fleet, **given}))


def test_before_any_report_it_holds_within_the_bounds():
    assert decide(Autoscaler(), 0, max_replicas=2).replicas == 2
    assert decide(Autoscaler(), 0, min_replicas=5).replicas == 5
    assert decide(Autoscaler(), 0, current_replicas=0).replicas == 1
    decision = decide(Autoscaler(), 0)
    assert decision.replicas == 3
    assert decision.arrival_rate_per_s is None
    assert "no replica has reported" in decision.reason


def test_replicas_of_which_none_ever_starts_are_stuck():
    """A new deployment on a cluster without room: an hour of "no replica has reported yet"."""
    autoscaler = Autoscaler()
    for second in range(120):
        decision = decide(autoscaler, second, current_replicas=2, ready_replicas=0)
        assert decision.stuck_replicas == (2 if second >= 50 else 0)
    assert "no replica has reported yet; only 0 of 2 serve: 2 do not start" in decision.reason


def test_a_decision_shows_the_delays_that_replicas_measure_and_the_retries_in_force():
    autoscaler = Autoscaler(replace(SETTINGS, retries=2))
    measured = {"request_delay_ms": 1.5, "reply_delay_ms": 0.5, "retry_delay_ms": 3.0}
    for second in range(30):
        autoscaler.observe(
            [report("r0", START_S + second, 10.0 * second, **measured)], START_S + second
        )
        decision = decide(autoscaler, second)
    assert decision.try_delays == {**measured, "retries": 2}


def test_scales_out_at_once_to_what_the_sla_needs():
    fleet = Fleet(1)
    assert fleet.run(60, 0.5 * PER_REPLICA).replicas == 1
    assert fleet.run(4, 5.5 * PER_REPLICA).replicas > 1  # reports are 2 s late
    decision = fleet.run(21, 5.5 * PER_REPLICA)
    assert decision.replicas == required_replicas(CURVE, decision.demand_per_s) >= 6
    assert decision.arrival_rate_per_s == pytest.approx(5.5 * PER_REPLICA, rel=0.1)
    # While the past is short, the demand allows for a burst.
    assert 5.4 * PER_REPLICA < decision.demand_per_s < 1.5 * 5.5 * PER_REPLICA
    assert decision.predicted_service_level >= 0.99
    assert f"needs {decision.replicas}" in decision.reason


def test_scales_in_only_after_the_hold():
    fleet = Fleet(1)
    fleet.run(60, 5.5 * PER_REPLICA)
    before = fleet.history[-1]
    fleet.run(SETTINGS.scale_down_delay_s - 5, 1.5 * PER_REPLICA)
    assert fleet.history[-1] == before
    fleet.run(240, 1.5 * PER_REPLICA)
    assert 2 <= fleet.history[-1] <= 4


def test_a_stranger_lets_replicas_beyond_the_first_fleet_go_after_the_hold():
    fleet = Fleet(2)
    fleet.run(20, 3.5 * PER_REPLICA)
    ordered = max(fleet.history)
    assert ordered > 3
    fleet.run(270, 0.1 * PER_REPLICA)
    assert 2 <= fleet.history[-1] < ordered


def test_the_first_fleet_stays_until_the_load_is_known_across_a_restart():
    fleet = Fleet(3)
    fleet.run(200, 0.2 * PER_REPLICA)
    restored = Autoscaler(SETTINGS)
    restored.load_state(fleet.autoscaler.snapshot()())
    fleet.autoscaler = restored
    assert "the load has been known for" in fleet.run(75, 0.2 * PER_REPLICA).reason
    assert fleet.history[-1] == 3
    fleet.run(40, 0.2 * PER_REPLICA)
    assert fleet.history[-1] == 1


@pytest.mark.slow
def test_a_load_beyond_the_upper_bound_does_not_change_the_risk():
    """Each such window once counted as missed: after two hours, the risk was at its minimum."""
    fleet = Fleet(3, seed=2)
    fleet.run(200, 2.0 * PER_REPLICA, max_replicas=3)
    before = fleet.autoscaler.risk
    assert "more than 3 replicas" in fleet.run(500, 6.0 * PER_REPLICA, max_replicas=3).reason
    assert fleet.autoscaler.risk == pytest.approx(before, rel=0.03)


@pytest.mark.slow
def test_a_forecast_that_misses_lowers_the_risk():
    """The load steps up every five minutes, as it never has before."""
    fleet = Fleet(1, seed=2, start_time_s=60.0)
    fleet.run(300, 0.5 * PER_REPLICA)
    for step in range(1, 5):
        fleet.run(300, 2.0**step * PER_REPLICA)
    assert fleet.autoscaler.risk < 0.9 * 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("replicas_worth", "delay_s"), [(1.0, 60.0), (3.0, None)])
def test_a_constant_load_causes_no_oscillation_in_an_hour(replicas_worth, delay_s):
    """Not even if the load lies right between two numbers of replicas."""
    settings = replace(SETTINGS, scale_down_delay_s=delay_s)
    fleet = Fleet(max(1, round(replicas_worth)), seed=3, settings=settings)
    fleet.run(3600, replicas_worth * PER_REPLICA)
    # In the first minutes it learns how noisy the load is.
    assert len(fleet.changes) <= 5, fleet.changes
    assert len(set(fleet.history[1800:])) <= 2
    assert fleet.history[-1] <= math.ceil(1.2 * replicas_worth) + 1
    assert fleet.missed_share() < 0.01


def test_stale_reports_hold():
    fleet = Fleet(1)
    fleet.run(120, 3.5 * PER_REPLICA)
    before = fleet.history[-1]
    fleet.silent = {f"r{number}" for number in range(fleet.made)}
    decision = fleet.run(600, 0.1 * PER_REPLICA)
    assert decision.replicas == before
    assert "the newest report is 600 s old" in decision.reason
    # When reports return, the hold starts over.
    fleet.silent = set()
    assert fleet.run(SETTINGS.scale_down_delay_s - 5, 0.1 * PER_REPLICA).replicas == before
    assert fleet.run(150, 0.1 * PER_REPLICA).replicas == 1


def test_replicas_that_are_still_starting_carry_no_share():
    fleet = Fleet(4)
    fleet.run(400, 0.2 * PER_REPLICA)
    told = fleet.report_of(fleet.ready[0])

    def decided(**given):
        autoscaler = copy.deepcopy(fleet.autoscaler)
        told_later = replace(told, time_s=told.time_s + 0.5, counted_s=told.counted_s + 0.5)
        autoscaler.observe([told_later], told_later.time_s)
        return decide(autoscaler, fleet.second + 1, current_replicas=20, **given).replicas

    assert decided(ready_replicas=20) > decided(ready_replicas=1) == 1


def test_replica_that_never_starts_does_not_keep_the_others():
    fleet = Fleet(1)
    fleet.run(30, 0.5 * PER_REPLICA)
    fleet.starts_fail = True
    assert fleet.run(60, 0.95 * PER_REPLICA).replicas > 1
    assert fleet.run(300, 0.03 * PER_REPLICA).replicas == 1


@pytest.mark.slow
def test_starts_that_fail_for_ten_minutes_do_not_inflate_the_order():
    """However long the queues and however many refusals, the order is what the load requires."""
    fleet = Fleet(2)
    fleet.run(120, 1.5 * PER_REPLICA)
    fleet.starts_fail = True
    decision = fleet.run(600, 5 * PER_REPLICA)
    assert decision.arrival_rate_per_s == pytest.approx(5 * PER_REPLICA, rel=0.1)
    assert 5 <= decision.replicas <= 8
    assert max(fleet.history) <= 8
    assert len(fleet.ready) <= 3


@pytest.mark.slow
def test_slow_starts_do_not_order_the_same_demand_twice():
    fleet = Fleet(1, start_time_s=300.0)
    fleet.run(60, 0.5 * PER_REPLICA)
    fleet.run(290, 4 * PER_REPLICA)
    assert 4 <= fleet.history[-1] == max(fleet.history) <= 7


@pytest.mark.parametrize("unknown", [{}, {"sla_rate_per_s": 0.0, "late_shares": ()}])
def test_a_second_replica_is_tried_at_once_where_the_first_shares_its_cores(unknown):
    """Behind 1,200 closed-loop connections: 78% are refused, and there is room for two."""
    fleet = Fleet(1, **bottleneck_to_floats("neither"), **unknown)
    decision = fleet.run(10, 4.5 * PER_REPLICA, max_replicas=2)
    assert (decision.replicas, decision.bottleneck) == (2, "neither")
    assert fleet.missed_share() > 0.5


def test_most_replicas_decide_what_the_bottleneck_is():
    class Mixed(Fleet):
        def report_of(self, name):
            code = 1.0 if name == "r0" else 2.0
            return replace(super().report_of(name), bottleneck_code=code)

    assert Mixed(3).run(30, 2.5 * PER_REPLICA).bottleneck == "event_loop"


def test_burst_factor_is_kept_in_reserve():
    plain, burst = (
        Fleet(4, settings=replace(SETTINGS, burst_factor=factor)).run(120, 1.7 * PER_REPLICA)
        for factor in (1.0, 2.0)
    )
    assert burst.demand_per_s == pytest.approx(2 * plain.demand_per_s)
    assert burst.required_replicas == required_replicas(CURVE, 2 * plain.demand_per_s)


def test_settings_come_with_the_reports():
    fleet = Fleet(1)
    fleet.run(30, 0.5 * PER_REPLICA)
    fleet.report["settings"] = replace(SETTINGS, burst_factor=3.0)
    assert fleet.run(4, 0.5 * PER_REPLICA).replicas >= 2
    assert fleet.autoscaler.settings.burst_factor == 3.0


class TestScaleToZero:
    SETTINGS = replace(SETTINGS, scale_to_zero_delay_s=120, scale_down_delay_s=20)

    def fleet(self, **given):
        return Fleet(1, settings=self.SETTINGS, **given)

    def test_the_last_replica_goes_when_no_request_comes(self):
        fleet = self.fleet()
        fleet.run(60, 0.3 * PER_REPLICA, min_replicas=0)
        fleet.run(110, 0.0, min_replicas=0)
        assert fleet.history[-1] == 1
        assert fleet.run(30, 0.0, min_replicas=0).replicas == 0
        assert fleet.run(100, 0.0, min_replicas=0).reason == "stay at 0: no request waits"

    def test_the_last_replica_stays_for_at_least_a_start_time(self):
        fleet = self.fleet(start_time_s=400.0)
        fleet.run(60, 0.3 * PER_REPLICA, min_replicas=0)
        assert fleet.run(390, 0.0, min_replicas=0).replicas == 1
        assert fleet.run(20, 0.0, min_replicas=0).replicas == 0

    def test_waiting_requests_order_replicas_for_their_arrival_rate(self):
        fleet = self.fleet(start_time_s=60.0)
        fleet.run(60, 0.3 * PER_REPLICA, min_replicas=0)
        fleet.run(200, 0.0, min_replicas=0)
        assert fleet.history[-1] == 0
        decision = fleet.run(2, 2.5 * PER_REPLICA, min_replicas=0)
        assert decision.replicas >= 1
        assert "wait and nothing serves" in decision.reason
        assert max(fleet.history[-2:]) <= 7
        fleet.run(90, 2.5 * PER_REPLICA, min_replicas=0)
        assert len(fleet.ready) >= 3

    def test_a_woken_replica_is_kept_until_its_first_request(self):
        """The waking client may have given up by the time the replica serves."""
        fleet = self.fleet(start_time_s=60.0)
        fleet.run(60, 0.3 * PER_REPLICA, min_replicas=0)
        fleet.run(200, 0.0, min_replicas=0)
        fleet.run(1, 20.0, min_replicas=0)
        assert fleet.run(100, 0.0, min_replicas=0).replicas >= 1


def test_a_restored_autoscaler_decides_alike():
    fleet = Fleet(1)
    fleet.run(100, 3.5 * PER_REPLICA)
    fleet.run(100, 0.5 * PER_REPLICA)
    standing = fleet.history[-1]
    restored = Autoscaler()
    restored.load_state(json.loads(json.dumps(fleet.autoscaler.snapshot()())))
    assert restored.settings == SETTINGS
    held = decide(restored, fleet.second, current_replicas=standing)
    assert held.replicas == standing  # no replica has reported since
    for _ in range(12):
        first = fleet.step(0.5 * PER_REPLICA)
        restored.observe([fleet.report_of(name) for name in fleet.ready], START_S + fleet.second)
        second = decide(restored, fleet.second, current_replicas=standing)
    assert second.demand_per_s == pytest.approx(first.demand_per_s, rel=0.05)
    for name in ("replicas", "required_replicas", "scale_down_delay_s", "method"):
        assert getattr(second, name) == getattr(first, name)


@pytest.mark.parametrize("state", [{"version": 0}, {"version": 8, "monitor": 3}, "nonsense"])
def test_unusable_state_is_refused_and_changes_nothing(state):
    fleet = Fleet(1)
    fleet.run(60, 3.5 * PER_REPLICA)
    before = fleet.autoscaler.snapshot()()
    with pytest.raises(InvalidInputError, match=r"^state"):
        fleet.autoscaler.load_state(state)
    assert fleet.autoscaler.snapshot()() == before
