"""What the autoscaler does if reports come late, not at all, or from a wrong clock.

Each test once failed: replicas were ordered for load that never was, or load was overlooked.
"""

import json
from dataclasses import replace

import pytest

from autoscaler.controller import Autoscaler
from autoscaler.decision import FleetState
from tests.support.autoscaling.reporting_fleet import PER_REPLICA, START_S, Fleet

TEMPLATE = Fleet().report_of("r0")
#: Requests per second and replica.
LOAD = 0.6 * PER_REPLICA


def report(name, second, counted_s, *, per_s=LOAD, clock_s=0.0, begun=0.0, **given):
    """Return the report of a replica that has counted for `counted_s` at a constant rate."""
    total = begun + per_s * counted_s
    return replace(
        TEMPLATE,
        replica_id=name,
        time_s=START_S + second + clock_s,
        offered_total=total,
        answered_total=total,
        start_time_s=60.0,
        counted_s=counted_s,
        **given,
    )


def decide(autoscaler, second, reports, *, current, ready=None):
    autoscaler.observe(reports, START_S + second)
    ready = current if ready is None else ready
    return autoscaler.decide(START_S + second, FleetState(current, 1, 1000, ready))


def restarted(autoscaler):
    """Return a new autoscaler with the saved state."""
    heir = Autoscaler()
    heir.load_state(json.loads(json.dumps(autoscaler.snapshot()())))
    return heir


@pytest.mark.slow
def test_a_replica_whose_first_report_is_five_minutes_late_orders_nothing():
    """Its whole counter was once spread over a second: the order went from 4 to 233."""
    autoscaler, orders = Autoscaler(), []
    for second in range(1, 1000):
        reports = [report(f"r{i}", second, second) for i in range(4)]
        if second >= 900:
            reports.append(report("late", second, second - 600))
        decision = decide(autoscaler, second, reports, current=5, ready=4 + (second >= 600))
        orders.append(decision.replicas)
        if second == 890:
            # Its load is known before its first report comes.
            assert decision.silent_replicas == 1
            assert decision.arrival_rate_per_s == pytest.approx(5 * LOAD)
    assert max(orders[100:]) <= 6


@pytest.mark.slow
def test_replicas_that_began_to_serve_while_the_controller_was_away_order_nothing():
    """With ten replicas needed, 250 were once ordered, and kept for minutes."""
    autoscaler, orders = Autoscaler(), []
    for second in range(1, 900):
        old = [report(f"r{i}", second, second) for i in range(5)]
        decide(autoscaler, second, old, current=10, ready=5)
    autoscaler = restarted(autoscaler)
    for second in range(960, 1300):
        old = [report(f"r{i}", second, second) for i in range(5)]
        new = [report(f"n{i}", second, second - 905) for i in range(5)]
        orders.append(decide(autoscaler, second, old + new, current=10).replicas)
    assert max(orders) <= 10


def test_a_controller_without_state_orders_nothing_for_slow_reports():
    """A thousand replicas were once ordered."""
    autoscaler, orders = Autoscaler(), []
    for second in range(100_000, 100_120):
        reported = {i: second - (second - i) % 10 for i in range(10)}
        reports = [report(f"r{i}", at, at) for i, at in reported.items() if at >= 100_000]
        orders.append(decide(autoscaler, second, reports, current=10).replicas)
    assert max(orders) <= 10


def test_reports_that_come_slowly_are_sized_for_in_full_and_named():
    """At Ray's default of ten seconds, half of the load was once overlooked."""
    autoscaler, interval_s = Autoscaler(), 10
    for second in range(1, 200):
        reported = {i: second - (second - i) % interval_s for i in range(10)}
        reports = [report(f"r{i}", at, at) for i, at in reported.items() if at > 0]
        decision = decide(autoscaler, second, reports, current=10)
    assert decision.demand_per_s > 10 * LOAD
    assert decision.arrival_rate_per_s == pytest.approx(10 * LOAD, rel=1e-3)
    assert decision.report_interval_s == interval_s
    assert f"reports come only every {interval_s} s" in decision.reason


@pytest.mark.parametrize("clock_s", [-4.0, 3600.0])
def test_half_of_the_replicas_with_a_wrong_clock_count_in_full(clock_s):
    """Four seconds behind, they were once left out for good: 917 of 1333 requests per second."""
    autoscaler = Autoscaler()
    for second in range(1, 300):
        reports = [
            report(f"r{i}", second, second, clock_s=clock_s if i % 2 else 0.0) for i in range(10)
        ]
        decision = decide(autoscaler, second, reports, current=10)
        if second > 30:
            assert decision.arrival_rate_per_s == pytest.approx(10 * LOAD, rel=1e-3)
    assert decision.silent_replicas == 0
    assert "report" not in decision.reason


def test_a_rise_is_seen_in_full_while_half_of_the_replicas_are_silent():
    """Ten replicas at 1.1 times their SLA rate were once kept for fifteen minutes."""
    autoscaler, total = Autoscaler(), 0.0
    for second in range(1, 400):
        total += LOAD if second < 200 else 1.1 * PER_REPLICA
        names = [f"r{i}" for i in range(10) if second < 100 or i >= 5]
        reports = [report(name, second, second, per_s=0.0, begun=total) for name in names]
        decision = decide(autoscaler, second, reports, current=10)
    assert decision.arrival_rate_per_s == pytest.approx(11 * PER_REPLICA, rel=1e-3)
    assert decision.replicas >= 11
    assert decision.silent_replicas == 5
    assert "replicas that serve without reporting: 5" in decision.reason


def test_nothing_goes_while_most_replicas_are_silent():
    autoscaler = Autoscaler()
    for second in range(1, 600):
        reports = [
            report(f"r{i}", second, second, per_s=0.1 * LOAD)
            for i in range(10)
            if second < 12 or i >= 6
        ]
        decision = decide(autoscaler, second, reports, current=10)
        assert decision.replicas == 10
    assert "most replicas do not report" in decision.reason


def test_the_backlog_of_silent_replicas_is_assumed_to_be_that_of_the_others():
    backlogs = []
    for silent in (0, 5):
        autoscaler = Autoscaler()
        for second in range(1, 60):
            reports = [
                report(f"r{i}", second, second, queue_length=100.0)
                for i in range(10)
                if second < 20 or i >= silent
            ]
            decision = decide(autoscaler, second, reports, current=10)
        backlogs.append(decision.backlog)
    assert backlogs[0] == backlogs[1] == pytest.approx(10 * (100 - 64))


def test_replicas_that_do_not_start_are_told_of_and_not_counted_on():
    """With two of four replicas for good, 99.996% in time were once predicted, and 1.1% were."""
    autoscaler, decisions = Autoscaler(), []
    for second in range(1, 900):
        # The two that serve take 1.9 times what one can each, or would.
        reports = [report(f"r{i}", second, second, per_s=1.9 * PER_REPLICA) for i in range(2)]
        ready = 4 if second >= 800 else 2
        reports += [report(f"n{i}", second, second - 799, per_s=0) for i in range(ready - 2)]
        decisions.append(decide(autoscaler, second, reports, current=4, ready=ready))
    early, late, after = decisions[60], decisions[600], decisions[-1]
    assert early.stuck_replicas == 0
    assert late.stuck_replicas == 2
    assert "only 2 of 4 serve: 2 do not start (is there room" in late.reason
    assert late.predicted_service_level < 0.9
    assert after.stuck_replicas == 0
    assert "do not start" not in after.reason
