"""The policy of one deployment, called with contexts made up by the test, without a cluster.

`tests/integration` runs it in a real controller.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve._private.common import TimeStampedValue

from autoscaler import ray_adapter, scaled_deployments
from autoscaler.ray_adapter import SojournAutoscalingPolicy, replica_reports
from autoscaler.reports import ReplicaReport, curve_to_floats
from autoscaler.standbys import StandbyRoles, roles_key
from policy.load_lateness import LoadLatenessCurve
from tests.support.autoscaling.ray_contexts import Offered, context, keep_in_memory
from tests.support.autoscaling.stores import Store

#: Two have the same SLA rate.
CURVES = [
    LoadLatenessCurve(rate_per_s, (share,) * len(LoadLatenessCurve.MULTIPLES))
    for rate_per_s, share in ((50.0, 0.01), (50.0, 0.02), (60.0, 0.02))
]


@pytest.fixture
def store():
    return Store()


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch, store: Store):
    keep_in_memory(monkeypatch, store)


@pytest.fixture
def offered():
    return Offered()


def run(offered: Offered, policy: SojournAutoscalingPolicy, seconds, **given):
    for now_s in seconds:
        replicas, _ = policy(context(offered, now_s=now_s, **given))
    return replicas


def test_a_new_policy_object_continues(offered: Offered):
    """Ray makes one at every change of the config."""
    replicas = run(offered, SojournAutoscalingPolicy(), range(1000, 1020), rate_per_s=250)
    assert replicas >= 3
    assert run(offered, SojournAutoscalingPolicy(), range(1020, 1021), rate_per_s=250) >= 3


def test_a_dry_run_orders_nothing(offered: Offered):
    policy = SojournAutoscalingPolicy()
    assert run(offered, policy, range(1000, 1020), rate_per_s=250, dry_run=True) == 1
    assert run(offered, policy, range(1020, 1022), rate_per_s=250, dry_run=False) >= 3


def test_a_deployment_without_replicas_stays_so_until_a_request_waits(offered: Offered):
    policy = SojournAutoscalingPolicy()
    assert run(offered, policy, range(1000, 1010), target=0, min_replicas=0) == 0
    assert run(offered, policy, range(1010, 1012), target=0, min_replicas=0, waiting=3) >= 1


def test_an_error_in_the_autoscaler_keeps_the_replicas(offered: Offered, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("of the autoscaler")

    monkeypatch.setattr(ray_adapter, "_decide", fail)
    assert run(offered, SojournAutoscalingPolicy(), range(1000, 1003), target=4) == 4
    assert "kept as they are" in caplog.text


def test_an_invalid_report_is_ignored(offered: Offered):
    ctx = context(offered, now_s=1000, target=2)
    first, second = ctx.running_replicas
    ctx.raw_metrics["offered_total"][first] = [TimeStampedValue(1000, -1.0)]
    assert [
        report.replica_id for report in replica_reports(ctx.raw_metrics, ctx.running_replicas)
    ] == [second.unique_id]


def test_only_reports_that_are_new_are_read(offered: Offered):
    before = context(offered, now_s=1000, rate_per_s=50, target=3)
    first = replica_reports(before.raw_metrics, before.running_replicas)
    ctx = context(offered, now_s=1001, rate_per_s=50, target=3)
    still, unconfigured, newer = ctx.running_replicas
    for metric, by_replica in ctx.raw_metrics.items():
        by_replica[still] = [TimeStampedValue(1000, by_replica[still][0].value)]
        if metric == "offered_total":
            by_replica[unconfigured] = []
    second = replica_reports(ctx.raw_metrics, ctx.running_replicas, first)
    assert [report.replica_id for report in second] == [still.unique_id, newer.unique_id]
    assert second[0] is first[0]
    assert second[1].time_s == 1001
    assert second[1].offered_total > first[2].offered_total


@given(st.lists(st.sampled_from([None, *CURVES]), min_size=2, max_size=4), st.booleans())
def test_a_curve_that_did_not_change_is_not_read_again(
    curves: list[LoadLatenessCurve | None], out_of_reach
):
    offered = Offered()
    reports: list[ReplicaReport] = []
    for now_s, curve in enumerate(curves, 1000):
        floats = curve_to_floats(curve, out_of_reach=out_of_reach)
        ctx = context(offered, now_s=now_s, rate_per_s=50, **floats)
        before, reports = reports, replica_reports(ctx.raw_metrics, ctx.running_replicas, reports)
        assert reports == replica_reports(ctx.raw_metrics, ctx.running_replicas)
        if before and before[0].curve == curve is not None:
            assert reports[0].late_shares is before[0].late_shares


def test_of_a_large_fleet_a_sample_is_read_and_decides_alike(offered: Offered, monkeypatch):
    """A decision on 10,000 replicas once took Serve's controller a third of a second."""

    def decided(most_reports):
        monkeypatch.setattr(ray_adapter, "MAX_REPORTS", most_reports)
        keep_in_memory(monkeypatch, Store())
        policy, random, log = SojournAutoscalingPolicy(), Random(1), []
        names = [f"{random.random():.12f}" for _ in range(60)]
        load, running = Offered(), 40
        for now_s in range(1000, 1040):
            # Replicas come, and others go.
            running = {1015: 60, 1030: 50}.get(now_s, running)
            given = names[60 - running :] if now_s >= 1030 else names[:running]
            policy(context(load, now_s=now_s, rate_per_s=700, target=running, names=given))
            ((_, deployment),) = scaled_deployments._deployments.items()
            assert len(deployment.reports) == min(running, most_reports)
            log.append(deployment.log.newest)
        return log

    for whole, sampled in zip(decided(10**6), decided(20), strict=True):
        assert sampled["silent_replicas"] == whole["silent_replicas"] == 0
        for known in ("arrival_rate_per_s", "demand_per_s", "required_replicas"):
            assert sampled[known] == (whole[known] and pytest.approx(whole[known], rel=0.03))


@pytest.mark.parametrize("code", [0.0, 7.0])
def test_the_code_of_a_history_reaches_the_deployment(offered: Offered, store: Store, code):
    run(offered, SojournAutoscalingPolicy(), range(1000, 1010), rate_per_s=50, history_code=code)
    assert (scaled_deployments.history_key("app", "Model") in store.loaded) == bool(code)


def published(store: Store):
    return StandbyRoles.from_bytes(store.kept.get(roles_key("app", "Model")))


def test_standbys_are_ordered_and_the_roles_published(offered: Offered, store: Store):
    policy, wanted = SojournAutoscalingPolicy(), {"rate_per_s": 20, "settings_standbys": 1}
    assert run(offered, policy, range(1000, 1020), **wanted) == 2
    both = {**wanted, "names": ["Model0", "Model1"], "target": 2}
    assert run(offered, policy, range(1020, 1025), **both, standbys=["Model1"]) == 2
    roles = published(store)
    assert (roles.serving, roles.standbys) == (("Model0",), ("Model1",))
    # A standby takes the place of a replica that dies, and the replacement stands by.
    assert run(offered, policy, range(1025, 1026), **{**both, "names": ["Model1"]}) == 2
    roles = published(store)
    assert roles.serving == ("Model1",)
    assert roles.stands_by("Model2")


@pytest.mark.parametrize(("budget", "dry_run"), [(None, True), (9, False)])
def test_neither_a_dry_run_nor_a_shared_budget_has_standbys(
    offered: Offered, store: Store, budget, dry_run
):
    policy, wanted = SojournAutoscalingPolicy(budget), {"rate_per_s": 20, "settings_standbys": 2}
    assert run(offered, policy, range(1000, 1020), **wanted, dry_run=dry_run) == 1
    assert published(store) is None


def test_a_steady_clock_follows_the_wall_clock_but_never_back():
    clock = ray_adapter.SteadyClock()
    # It gains a second, is set back by an hour, and forward again by two.
    walls = [5000.0, 5001.0, 5003.0, 1404.0, 1405.5, 8607.0]
    ticks = [10.0, 11.0, 12.0, 13.0, 14.5, 16.0]
    found = [clock.now_s(*each) for each in zip(walls, ticks, strict=True)]
    assert found == [5000.0, 5001.0, 5003.0, 5004.0, 5005.5, 8607.0]
