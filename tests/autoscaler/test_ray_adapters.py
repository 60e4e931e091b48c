"""The policy classes, called with Ray's own contexts, but without a cluster.

That they run in a real controller, `tests/integration` shows.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from autoscaler import scaled_deployments
from autoscaler.decision import Decision
from autoscaler.decision_log import DecisionLog
from autoscaler.settings import AutoscalerSettings
from policy.errors import InvalidInputError
from tests.support.stores import Store

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, as it is imported
    from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
    from ray.serve.config import AutoscalingContext

    from autoscaler import ray_adapter
    from autoscaler.application_adapter import SojournBudgetPolicy
    from autoscaler.ray import metrics as ray_metrics
    from autoscaler.ray_adapter import SojournAutoscalingPolicy, replica_reports

#: Rows per second that one replica carries.
CAPACITY_PER_S = 100.0


class Offered:
    """Counts what each replica was offered, second by second."""

    def __init__(self) -> None:
        self._totals: Counter[ReplicaID] = Counter()
        self._seen_s: dict[str, float] = {}

    def add(self, name: str, now_s: float, rate_per_s: float, replicas: list[ReplicaID]) -> None:
        passed_s = now_s - self._seen_s.setdefault(name, now_s)
        self._seen_s[name] = now_s
        for replica in replicas:
            self._totals[replica] += rate_per_s * passed_s / len(replicas)

    def total(self, replica: ReplicaID) -> float:
        return self._totals[replica]


OFFERED = Offered()


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store()
    monkeypatch.setattr(sys.modules[__name__], "OFFERED", Offered())
    monkeypatch.setattr(scaled_deployments, "_deployments", {})
    monkeypatch.setattr(ray_adapter, "store", lambda: made)
    monkeypatch.setattr(ray_metrics, "export", lambda *_: None)
    return made


def context(
    name: str = "Model",
    *,
    now_s: float,
    rate_per_s: float = 0.0,
    target: int = 1,
    running: int | None = None,
    least: int = 1,
    waiting: float = 0.0,
    dry_run: bool = False,
) -> AutoscalingContext:
    """Give what Ray tells of a deployment, under this load since it was last asked for."""
    deployment = DeploymentID(name, "app")
    running = target if running is None else running
    replicas = [ReplicaID(f"{name}{number}", deployment) for number in range(running)]
    OFFERED.add(name, now_s, rate_per_s, replicas)
    values = {
        "refused_total": 0.0,
        "completed_total": 0.0,
        "queue_length": 0.0,
        "full_batch_size": 10.0,
        "full_batch_ms": 1e3 * 10 / CAPACITY_PER_S,
        "sla_response_time_ms": 1000.0,
        "sla_percentile": 99.0,
        "start_time_s": 5.0,
        "dry_run": float(dry_run),
        **AutoscalerSettings(hold_s=30).to_floats(),
    }
    return AutoscalingContext(
        deployment_id=deployment,
        deployment_name=name,
        app_name="app",
        current_num_replicas=running,
        target_num_replicas=target,
        running_replicas=replicas,
        total_num_requests=waiting,
        total_queued_requests=waiting,
        aggregated_metrics={},
        raw_metrics={
            "offered_total": {
                replica: [TimeStampedValue(now_s, OFFERED.total(replica))] for replica in replicas
            },
            **{
                metric: {replica: [TimeStampedValue(now_s, value)] for replica in replicas}
                for metric, value in values.items()
            },
        },
        capacity_adjusted_min_replicas=least,
        capacity_adjusted_max_replicas=20,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=now_s,
        config=None,
    )


def run(policy: SojournAutoscalingPolicy, seconds: range, **told: Any) -> int:
    for now_s in seconds:
        replicas, _ = policy(context(now_s=now_s, **told))
    return replicas


def test_the_load_decides_and_a_new_policy_object_goes_on() -> None:
    """Ray makes one at every change of the config."""
    replicas = run(SojournAutoscalingPolicy(), range(1000, 1020), rate_per_s=250)
    assert replicas >= 3
    assert run(SojournAutoscalingPolicy(), range(1020, 1021), rate_per_s=250) >= 3


def test_between_two_decisions_the_last_one_holds() -> None:
    policy = SojournAutoscalingPolicy()
    replicas = run(policy, range(1000, 1020), rate_per_s=250)
    assert policy(context(now_s=1019.1, rate_per_s=900))[0] == replicas


def test_a_dry_run_orders_nothing() -> None:
    policy = SojournAutoscalingPolicy()
    assert run(policy, range(1000, 1020), rate_per_s=250, dry_run=True) == 1
    assert run(policy, range(1020, 1022), rate_per_s=250, dry_run=False) >= 3


def test_a_deployment_without_replicas_sleeps_until_a_request_waits() -> None:
    policy = SojournAutoscalingPolicy()
    assert run(policy, range(1000, 1010), target=0, least=0) == 0
    assert run(policy, range(1010, 1012), target=0, least=0, waiting=3) >= 1


def test_a_replica_that_was_woken_is_not_sent_back_before_its_first_request() -> None:
    """Ray wakes a deployment itself; the request that did so has not been counted yet."""
    policy = SojournAutoscalingPolicy()
    assert run(policy, range(1000, 1060), rate_per_s=20, least=0) == 1
    assert run(policy, range(1060, 1400), least=0) == 0
    assert run(policy, range(1400, 5000, 10), target=0, least=0) == 0
    assert run(policy, range(5000, 5010), target=1, running=0, least=0) >= 1
    assert run(policy, range(5010, 5100), target=1, least=0) == 1


def test_a_clock_that_is_ahead_does_not_stop_the_decisions() -> None:
    policy = SojournAutoscalingPolicy()
    for now_s in range(1000, 1030):
        ctx = context(now_s=now_s, rate_per_s=50 if now_s < 1010 else 450, target=2)
        ahead = ctx.running_replicas[0]
        for by_replica in ctx.raw_metrics.values():
            by_replica[ahead] = [TimeStampedValue(now_s + 3600, by_replica[ahead][0].value)]
        replicas, _ = policy(ctx)
    assert replicas >= 5


def test_an_error_of_ours_keeps_the_replicas_and_serves_controller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("of the autoscaler")

    monkeypatch.setattr(ray_adapter, "decide", fail)
    assert run(SojournAutoscalingPolicy(), range(1000, 1003), target=4) == 4
    assert "kept as they are" in caplog.text


def test_a_stored_log_of_another_kind_is_left_out() -> None:
    assert DecisionLog([{"then": 1}, {"time_s": 2.0, "replicas": 3}]).recorded == [
        {"time_s": 2.0, "replicas": 3}
    ]


def test_a_report_that_is_wrong_is_left_out() -> None:
    ctx = context(now_s=1000, target=2)
    first, second = ctx.running_replicas
    ctx.raw_metrics["offered_total"][first] = [TimeStampedValue(1000, -1.0)]
    assert [report.replica_id for report in replica_reports(ctx)] == [second.unique_id]


def test_every_metric_is_a_field_of_a_decision() -> None:
    assert set(ray_metrics._GAUGES) <= {field.name for field in fields(Decision)}


class Application:
    """Two deployments under one budget; what is ordered is there at once."""

    def __init__(self, budget: int) -> None:
        self.policy = SojournBudgetPolicy(replica_budget=budget)
        self.targets = {"First": 1, "Second": 1}

    def run(self, seconds: range, rates_per_s: dict[str, float], **told: Any) -> dict[str, int]:
        for now_s in seconds:
            contexts = {
                DeploymentID(name, "app"): context(
                    name,
                    now_s=now_s,
                    rate_per_s=rates_per_s[name],
                    target=target,
                    **told.get(name, {}),
                )
                for name, target in self.targets.items()
            }
            replicas, _ = self.policy(contexts)
            self.targets = {key.name: number for key, number in replicas.items()}
        return self.targets


def test_a_budget_that_suffices_gives_each_what_it_wants() -> None:
    targets = Application(12).run(range(1000, 1020), {"First": 250, "Second": 10})
    alone = run(SojournAutoscalingPolicy(), range(1000, 1020), rate_per_s=250)
    assert targets == {"First": alone, "Second": 1}


def test_a_budget_that_does_not_is_kept_and_the_larger_load_gets_more() -> None:
    targets = Application(5).run(range(1000, 1020), {"First": 500, "Second": 180})
    assert sum(targets.values()) == 5
    assert targets["First"] > targets["Second"]


def test_a_deployment_that_says_nothing_keeps_its_replicas_in_a_shortage() -> None:
    application = Application(5)
    application.run(range(1000, 1020), {"First": 100, "Second": 250})
    held = application.targets["Second"]
    assert held > 1
    silent = {"Second": {"running": 0}}
    application.run(range(1020, 1035), {"First": 100, "Second": 250}, **silent)
    targets = application.run(range(1035, 1060), {"First": 900, "Second": 250}, **silent)
    assert targets["Second"] == held
    assert sum(targets.values()) <= 5


def test_a_dry_run_keeps_its_part_of_the_budget() -> None:
    application = Application(4)
    application.targets["Second"] = 2
    dry = {"Second": {"dry_run": True}}
    targets = application.run(range(1000, 1020), {"First": 900, "Second": 0}, **dry)
    assert targets == {"First": 2, "Second": 2}


def test_a_replica_that_ray_wakes_is_part_of_the_budget() -> None:
    application = Application(3)
    application.targets = {"First": 3, "Second": 0}
    waking = {"Second": {"running": 0, "waiting": 2.0, "least": 0}}
    targets = application.run(range(1000, 1002), {"First": 900, "Second": 0}, **waking)
    assert targets == {"First": 2, "Second": 1}


def test_minima_above_the_budget_are_given_all_the_same() -> None:
    least = {"First": {"least": 2}, "Second": {"least": 2}}
    targets = Application(3).run(range(1000, 1020), {"First": 900, "Second": 0}, **least)
    assert targets == {"First": 2, "Second": 2}


@pytest.mark.parametrize("budget", [0, -1, 2.5, True, "3", None])
def test_a_budget_that_is_none_is_refused(budget: Any) -> None:
    with pytest.raises(InvalidInputError, match="replica_budget: must be a whole number"):
        SojournBudgetPolicy(replica_budget=budget)
