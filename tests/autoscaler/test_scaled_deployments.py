import subprocess
import sys
from dataclasses import replace

import orjson
import pytest

from autoscaler import scaled_deployments
from autoscaler.decision import Decision, FleetState
from autoscaler.scaled_deployments import (
    FORGOTTEN_AFTER_S,
    SAVE_PERIOD_S,
    ScaledDeployment,
    log_key,
    scaled_deployment,
    state_key,
)
from autoscaler.settings import AutoscalerSettings
from policy.load_lateness import LoadLatenessCurve
from tests.support.autoscaling.reports import report as replica_report
from tests.support.autoscaling.stores import Store

KEY = ("shop", "Model")
LATE_SHARES = tuple(0.01 * multiple for multiple in LoadLatenessCurve.MULTIPLES)


SETTINGS = AutoscalerSettings(scale_down_delay_s=30)
#: A replica that serves 100 requests/s in full batches.
REPLICA = {"full_batch_size": 10, "full_batch_ms": 100, "start_time_s": 5, "settings": SETTINGS}


def report(now_s, offered, **more):
    return replica_report("r1", now_s, offered, sla_response_time_ms=1000, **REPLICA, **more)


def run(deployment: ScaledDeployment, times_s, rate_per_s=20, target_replicas=3, dry_run=None):
    for now_s in times_s:
        decision = deployment.decide(
            now_s,
            [report(now_s, rate_per_s * now_s)],
            FleetState(target_replicas, 1, 10, target_replicas),
            dry_run=dry_run,
        )
        deployment.record(now_s, target_replicas, decision)
    return decision


def test_a_new_process_resumes_with_the_history_and_the_log():
    store = Store()
    first = ScaledDeployment(*KEY, store)
    run(first, range(1000, 1021))
    second = ScaledDeployment(*KEY, store)
    decision = run(second, range(1021, 1028))
    learned, saved = second.autoscaler.snapshot()(), first.autoscaler.snapshot()()
    assert learned.keys() == saved.keys()
    assert decision.arrival_rate_per_s == pytest.approx(20, rel=0.1)
    assert second.log.recorded[0]["time_s"] == 1000


def test_while_the_history_is_read_nothing_changes():
    store = Store()
    run(ScaledDeployment(*KEY, store), range(1000, 1021))
    kept = dict(store.kept)
    store.slow = True
    second = ScaledDeployment(*KEY, store)
    decision = run(second, [1100, 1101], rate_per_s=1000)
    assert decision.replicas == 3
    assert decision.reason.startswith("hold 3")
    assert store.kept == kept
    store.answer()
    assert run(second, [1102]).replicas >= 1
    assert second.log.recorded[0]["time_s"] == 1000


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"autoscaler": {"version": -1}}'])
def test_an_unusable_history_is_ignored(content):
    store = Store()
    store.kept[state_key(*KEY)] = content
    store.kept[log_key(*KEY)] = content
    decision = run(ScaledDeployment(*KEY, store), range(1000, 1021))
    assert decision.arrival_rate_per_s is not None


def test_a_state_saved_under_a_clock_that_was_ahead_is_dropped(caplog):
    """For an hour, "the arrival rate is not known yet": all that came was older than the state."""
    store = Store()
    run(ScaledDeployment(*KEY, store), range(4600, 4621))
    decision = run(ScaledDeployment(*KEY, store), range(1000, 1021))
    assert decision == run(ScaledDeployment(*KEY, Store()), range(1000, 1021))
    assert "Model: saved autoscaler state dropped: it is ahead" in caplog.messages


def test_the_state_is_saved_every_few_seconds_and_at_each_change():
    store = Store()
    deployment = ScaledDeployment(*KEY, store)
    run(deployment, [1000 + 0.5 * tick for tick in range(int(2 * 3 * SAVE_PERIOD_S))])
    # A state and a log each time: at the first decision, and every period after it.
    assert store.saves <= 2 * 5
    before = store.saves
    deployment.record(1030.0, 3, Decision(7, "scale out 3 -> 7"))
    assert store.saves == before + 2
    assert orjson.loads(store.kept[log_key(*KEY)])["newest"]["replicas"] == 7


def test_a_slow_store_is_not_flooded():
    store = Store()
    deployment = ScaledDeployment(*KEY, store)
    run(deployment, [1000])
    store.slow, store.saves = True, 0
    run(deployment, range(1020, 1200))
    assert store.saves == 2
    store.answer()
    run(deployment, [1200])
    assert store.saves == 4


def test_a_dry_run_survives_a_restart_before_any_report():
    store = Store()
    run(ScaledDeployment(*KEY, store), range(1000, 1021), dry_run=True)
    second = ScaledDeployment(*KEY, store)
    run(second, [1021], dry_run=None)
    assert second.dry_run


def test_the_state_of_a_deleted_application_is_deleted(monkeypatch):
    monkeypatch.setattr(scaled_deployments, "_deployments", {})
    store = Store()
    gone = scaled_deployment(1000, "gone", "Model", store)
    run(gone, range(1000, 1021))
    assert len(store.kept) == 2
    scaled_deployment(1021 + FORGOTTEN_AFTER_S, "new", "Model", store)
    assert store.kept == {}
    assert scaled_deployment(1022 + FORGOTTEN_AFTER_S, "gone", "Model", store) is not gone


@pytest.mark.parametrize("limited", [False, True])
def test_windows_in_which_a_budget_limited_the_order_are_not_judged(limited):
    """They once counted as missed, which drove the risk to its minimum."""
    deployment = ScaledDeployment(*KEY, Store())
    first_risk = deployment.autoscaler.risk
    for now_s in range(1000, 1300):
        fleet = FleetState(1, 1, 10, 1)
        curve = {"sla_rate_per_s": 100.0, "late_shares": LATE_SHARES}
        decision = deployment.decide(now_s, [report(now_s, 50 * now_s, **curve)], fleet)
        granted = replace(decision, replicas=decision.replicas - limited)
        deployment.record(now_s, 1, granted)
    # A window that is kept raises the risk.
    assert (deployment.autoscaler.risk > 1.001 * first_risk) != limited


@pytest.mark.slow
def test_no_decision_waits_for_the_import_of_a_forecast():
    """It once kept Serve's controller for 0.8 s, half an hour after the first report."""
    code = """
import sys
import numpy as np
from autoscaler.forecasting.demand import DemandForecaster
from autoscaler.forecasting.load_history import LoadHistory
history = LoadHistory()
history.observe(3600.0, np.arange(3600.0))
assert DemandForecaster(history).forecast(3600.0, 60.0, 0.01)
assert "scipy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
