import json
import time
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.controller import Autoscaler, AutoscalerSettings, Decision, ReplicaReport
from sojourn.errors import InvalidInputError

START_S = 1_700_000_000.0
# A full batch of 32 takes 200 ms: 160 requests/s. With 5 retries, 99% in time allows
# 160 · 0.01^(1/6) = 74.3 requests/s to a replica.
PER_REPLICA = 160 * 0.01 ** (1 / 6)
SETTINGS = AutoscalerSettings(window_s=10, hold_s=60, retries=5)


class Fleet:
    """Replicas on virtual time that share Poisson arrivals evenly and do as they are told."""

    def __init__(self, replicas=1, seed=1, start_time_s=5, report_delay_s=2, **report):
        self.autoscaler = Autoscaler(SETTINGS)
        self.second = 0
        self.rng = np.random.default_rng(seed)
        self.start_time_s, self.report_delay_s = start_time_s, report_delay_s
        self.report = {
            "queue_length": 0.0,
            "full_batch_size": 32.0,
            "full_batch_ms": 200.0,
            "sla_response_time_ms": 500.0,
            "sla_percentile": 99.0,
            **report,
        }
        self.ready_at = {f"r{number}": 0 for number in range(replicas)}
        self.offered = dict.fromkeys(self.ready_at, 1000.0)
        self.made = replicas
        self.sent: list[tuple[int, ReplicaReport]] = []
        self.silent: set[str] = set()
        self.history: list[int] = []

    def run(self, seconds, rate_per_s, **bounds) -> Decision:
        for _ in range(seconds):
            decision = self.step(rate_per_s, **bounds)
        return decision

    def step(self, rate_per_s, min_replicas=1, max_replicas=50) -> Decision:
        self.second += 1
        ready = [name for name, at in self.ready_at.items() if at <= self.second]
        arrivals = self.rng.multinomial(
            self.rng.poisson(rate_per_s), np.full(len(ready), 1 / len(ready))
        )
        for name, count in zip(ready, arrivals, strict=True):
            self.offered[name] = self.offered.get(name, 0.0) + count
            if name not in self.silent:
                self.sent.append((self.second + self.report_delay_s, self.report_of(name)))
        due = [report for at, report in self.sent if at <= self.second]
        self.sent = [(at, report) for at, report in self.sent if at > self.second]
        self.autoscaler.observe(due)
        decision = self.autoscaler.decide(
            START_S + self.second,
            current_replicas=len(self.ready_at),
            min_replicas=min_replicas,
            max_replicas=max_replicas,
        )
        while len(self.ready_at) < decision.replicas:
            self.ready_at[f"r{self.made}"] = self.second + self.start_time_s
            self.made += 1
        while len(self.ready_at) > decision.replicas:
            self.ready_at.popitem()
        self.history.append(decision.replicas)
        return decision

    def report_of(self, name) -> ReplicaReport:
        return ReplicaReport(
            replica_id=name,
            time_s=START_S + self.second,
            offered_total=self.offered[name],
            refused_total=0.0,
            completed_total=0.0,
            start_time_s=float(self.start_time_s),
            **self.report,
        )

    @property
    def changes(self):
        return [
            after - before
            for before, after in zip(self.history, self.history[1:], strict=False)
            if after != before
        ]


def decide(autoscaler, second, **bounds):
    given = {"current_replicas": 3, "min_replicas": 1, "max_replicas": 50, **bounds}
    return autoscaler.decide(START_S + second, **given)


def test_before_any_report_it_holds():
    decision = decide(Autoscaler(), 0)
    assert decision.replicas == 3
    assert decision.arrival_rate_per_s is None
    assert "no replica has reported" in decision.reason


def test_bounds_hold_even_without_reports():
    assert decide(Autoscaler(), 0, max_replicas=2).replicas == 2
    assert decide(Autoscaler(), 0, min_replicas=5).replicas == 5
    assert decide(Autoscaler(), 0, current_replicas=0, min_replicas=0).replicas == 1
    with pytest.raises(InvalidInputError, match="bounds"):
        decide(Autoscaler(), 0, min_replicas=5, max_replicas=4)


def test_scales_out_at_once_to_what_the_sla_needs():
    fleet = Fleet(1)
    assert fleet.run(60, 0.5 * PER_REPLICA).replicas == 1
    decision = fleet.run(15, 5.5 * PER_REPLICA)
    assert decision.replicas == 6
    assert decision.arrival_rate_per_s == pytest.approx(5.5 * PER_REPLICA, rel=0.1)
    assert decision.predicted_service_level >= 0.99
    assert "needs 6" in decision.reason


def test_first_step_comes_within_seconds_of_the_load():
    fleet = Fleet(1)
    fleet.run(60, 0.5 * PER_REPLICA)
    fleet.run(4, 5.5 * PER_REPLICA)  # 2 s of them are the reports' delay
    assert fleet.history[-1] > 1


def test_scales_in_only_after_the_hold():
    fleet = Fleet(1)
    fleet.run(60, 5.5 * PER_REPLICA)
    fleet.run(SETTINGS.hold_s - 5, 1.5 * PER_REPLICA)
    assert fleet.history[-1] == 6
    fleet.run(30, 1.5 * PER_REPLICA)
    assert fleet.history[-1] == 2
    first_in = next(number for number, change in enumerate(fleet.changes) if change < 0)
    assert all(change < 0 for change in fleet.changes[first_in:])


@pytest.mark.parametrize(
    ("replicas_worth", "forecast"),
    [(0.9, "last"), (3.0, "last"), (9.97, "last"), (1.0, "linear"), (2.9, "linear")],
)
def test_constant_load_brings_no_oscillation_in_an_hour(replicas_worth, forecast):
    """Also where the load lies at the very edge between two numbers of replicas."""
    fleet = Fleet(max(1, round(replicas_worth)), seed=round(100 * replicas_worth))
    fleet.autoscaler = Autoscaler(replace(SETTINGS, forecast=forecast))
    fleet.run(3600, replicas_worth * PER_REPLICA)
    ins = [number for number, change in enumerate(fleet.changes) if change < 0]
    assert ins == [], fleet.changes
    assert fleet.history[-1] <= np.ceil(1.2 * replicas_worth)


def test_stale_reports_hold():
    fleet = Fleet(1)
    fleet.run(120, 3.5 * PER_REPLICA)
    assert fleet.history[-1] == 4
    fleet.silent = {f"r{number}" for number in range(fleet.made)}
    decision = fleet.run(600, 0.1 * PER_REPLICA)
    assert decision.replicas == 4
    assert "the newest report is 600 s old" in decision.reason
    # Back again, the hold starts anew.
    fleet.silent = set()
    assert fleet.run(SETTINGS.hold_s - 5, 0.1 * PER_REPLICA).replicas == 4
    assert fleet.run(60, 0.1 * PER_REPLICA).replicas == 1


def test_replicas_that_keep_silent_are_taken_to_carry_their_share():
    """Three of four lose touch while they serve: a quarter of the load must not look like all."""
    fleet = Fleet(4)
    fleet.run(120, 3.5 * PER_REPLICA)
    fleet.silent = {"r1", "r2", "r3"}
    assert fleet.run(600, 3.5 * PER_REPLICA).replicas == 4


def test_replica_that_never_starts_does_not_keep_the_others():
    fleet = Fleet(1, start_time_s=10_000)
    fleet.run(30, 0.5 * PER_REPLICA)
    assert fleet.run(60, 1.5 * PER_REPLICA).replicas > 1
    assert fleet.run(300, 0.1 * PER_REPLICA).replicas == 1


def test_killed_replica_does_not_shrink_the_fleet():
    fleet = Fleet(4)
    fleet.run(120, 3.5 * PER_REPLICA)
    del fleet.ready_at["r2"]
    fleet.ready_at["r2-again"] = fleet.second + 20
    fleet.run(300, 3.5 * PER_REPLICA)
    assert min(fleet.history[100:]) >= 4


def test_demand_measured_at_completion_hides_overload():
    """However few requests are completed, the fleet is sized for what was offered."""
    fleet = Fleet(1)
    fleet.run(60, 4.5 * PER_REPLICA, max_replicas=1)
    # `Fleet` reports no completions at all, as a replica stuck in overload would.
    assert fleet.report_of("r0").completed_total == 0
    assert fleet.step(4.5 * PER_REPLICA).replicas == 5


def test_retried_requests_count_once():
    """Two replicas that refuse half of the tries: two tries a request are one arrival."""
    autoscaler = Autoscaler(replace(SETTINGS, retries=20))
    for second in range(31):
        tries = 100.0 * second  # each replica; together 200/s, of which half are retries
        autoscaler.observe(
            [
                replace(
                    Fleet().report_of("r0"),
                    replica_id=name,
                    time_s=START_S + second,
                    offered_total=tries,
                    refused_total=tries / 2,
                )
                for name in "ab"
            ]
        )
    assert decide(autoscaler, 31).arrival_rate_per_s == pytest.approx(100.0, rel=1e-3)


def test_changed_sla_acts_at_once_both_ways():
    fleet = Fleet(1)
    assert fleet.run(200, 2.5 * PER_REPLICA).replicas == 3
    fleet.report["sla_percentile"] = 99.99
    stricter = int(np.ceil(2.5 * PER_REPLICA / (160 * 0.0001 ** (1 / 6))))
    assert fleet.run(4, 2.5 * PER_REPLICA).replicas >= stricter > 3
    fleet.run(100, 2.5 * PER_REPLICA)
    fleet.report["sla_percentile"] = 90.0
    assert fleet.run(7, 2.5 * PER_REPLICA).replicas == 2


def test_while_replicas_disagree_the_sla_that_needs_more_counts():
    fleet = Fleet(3)
    fleet.run(100, 2.5 * PER_REPLICA)
    strict = replace(fleet.report_of("r1"), sla_percentile=99.99)
    loose = replace(fleet.report_of("r2"), sla_percentile=50.0)
    for reports in ([strict, loose], [loose, strict]):
        later = [
            replace(report, time_s=START_S + fleet.second + number / 10)
            for number, report in enumerate(reports, start=1)
        ]
        autoscaler = Autoscaler()
        autoscaler.load_state(fleet.autoscaler.state_dict())
        autoscaler.observe(later)
        assert decide(autoscaler, fleet.second + 1).replicas >= 5


def test_sla_out_of_reach_is_said_and_the_load_still_carried():
    fleet = Fleet(1, sla_response_time_ms=150.0)
    decision = fleet.run(30, 3.5 * PER_REPLICA)
    assert decision.replicas == 4
    assert decision.predicted_service_level == 0.0
    assert "99% within 150 ms is out of reach" in decision.reason


def test_more_than_the_most_is_said():
    decision = Fleet(1).run(30, 8.5 * PER_REPLICA, max_replicas=3)
    assert decision.replicas == 3
    assert decision.required_replicas == 3
    assert "more than 3 would be needed" in decision.reason


def test_backlog_is_worked_off():
    fleet = Fleet(1)
    fleet.run(60, 0.5 * PER_REPLICA)
    fleet.report["queue_length"] = 64.0  # what two full batches take is ordinary
    assert fleet.run(5, 0.5 * PER_REPLICA).backlog == 0
    fleet.report["queue_length"] = 64.0 + 10 * PER_REPLICA
    decision = fleet.run(5, 0.5 * PER_REPLICA)
    assert decision.backlog == pytest.approx(10 * PER_REPLICA)
    assert decision.replicas == 2  # half a replica for the load, one for the backlog in 10 s


def test_burst_factor_is_kept_in_reserve():
    fleet = Fleet(1)
    fleet.autoscaler = Autoscaler(replace(SETTINGS, burst_factor=2.0))
    assert fleet.run(30, 1.7 * PER_REPLICA).replicas == 4


def test_settings_come_with_the_reports():
    fleet = Fleet(1)
    fleet.run(30, 0.5 * PER_REPLICA)
    fleet.report["settings"] = replace(SETTINGS, burst_factor=3.0)
    assert fleet.run(4, 0.5 * PER_REPLICA).replicas == 2
    assert fleet.autoscaler.settings.burst_factor == 3.0


def test_horizon_is_the_90th_percentile_of_the_start_times():
    autoscaler = Autoscaler()
    base = Fleet().report_of("r0")
    autoscaler.observe(
        [replace(base, replica_id=f"r{n}", start_time_s=float(n)) for n in range(1, 11)]
    )
    assert decide(autoscaler, 1).horizon_s == 9.0


def test_linear_forecast_orders_for_when_the_replica_will_have_started():
    """A ramp, and replicas that take a minute to start: ahead of the load, not behind it."""
    behind = {}
    for forecast in ("last", "linear"):
        fleet = Fleet(2, start_time_s=60)
        fleet.autoscaler = Autoscaler(replace(SETTINGS, forecast=forecast))
        fleet.run(120, 1.5 * PER_REPLICA)
        behind[forecast] = 0
        for second in range(300):
            rate = (1.5 + second / 50) * PER_REPLICA
            fleet.step(rate)
            ready = sum(at <= fleet.second for at in fleet.ready_at.values())
            behind[forecast] += rate > ready * PER_REPLICA
    # The first 60 s of the ramp no forecast can help.
    assert behind["last"] > 250
    assert behind["linear"] < 150


def test_state_goes_through_json_and_decides_alike():
    fleet = Fleet(1)
    fleet.run(100, 3.5 * PER_REPLICA)
    fleet.run(40, 0.5 * PER_REPLICA)
    heir = Autoscaler()
    heir.load_state(json.loads(json.dumps(fleet.autoscaler.state_dict())))
    assert heir.settings == SETTINGS
    held = decide(heir, fleet.second, current_replicas=4)
    assert held.replicas == 4  # no replica has reported to it yet
    original, fleet.autoscaler = fleet.autoscaler, heir
    fleet.step(0.5 * PER_REPLICA)
    fleet.run(60, 0.5 * PER_REPLICA)
    assert fleet.history[-1] == 1  # the hold went on where it was
    assert original is not heir


@pytest.mark.parametrize(
    "state", [{}, {"version": 0}, {"version": 1}, {"version": 1, "load": 3}, "nonsense"]
)
def test_unusable_state_is_refused_and_changes_nothing(state):
    fleet = Fleet(1)
    fleet.run(60, 3.5 * PER_REPLICA)
    with pytest.raises(InvalidInputError, match=r"^state"):
        fleet.autoscaler.load_state(state)
    assert fleet.run(5, 3.5 * PER_REPLICA).replicas == 4


def test_a_decision_for_a_hundred_replicas_takes_about_a_millisecond():
    """It runs in Ray Serve's controller. The bound is loose for busy machines; see the median."""
    fleet = Fleet(100)
    fleet.run(70, 90 * PER_REPLICA, max_replicas=200)
    taken_s = []
    for second in range(fleet.second + 1, fleet.second + 40):
        fleet.second = second
        fleet.autoscaler.observe([fleet.report_of(name) for name in fleet.ready_at])
        begin_s = time.process_time()
        decide(fleet.autoscaler, second, max_replicas=200)
        taken_s.append(time.process_time() - begin_s)
    assert np.median(taken_s) < 2e-3
