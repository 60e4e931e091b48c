"""The contexts that Ray Serve passes to an autoscaling policy, made up for tests."""

from collections import defaultdict
from collections.abc import Collection, Sequence

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.config import AutoscalingContext

from autoscaler import ray_adapter, scaled_deployments, shared_budget
from autoscaler.ray import metrics
from autoscaler.settings import AutoscalerSettings
from tests.support.autoscaling.stores import Store

#: Rows per second that one replica can serve.
CAPACITY_PER_S = 100.0


def keep_in_memory(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Make new policies begin without history, and keep theirs in `store` instead of in Ray."""
    monkeypatch.setattr(scaled_deployments, "_deployments", {})
    monkeypatch.setattr(shared_budget, "_budget", shared_budget.SharedBudget())
    monkeypatch.setattr(ray_adapter, "store", lambda: store)
    monkeypatch.setattr(metrics, "export", lambda *_: None)


class Offered:
    """The rows offered to each replica so far."""

    def __init__(self) -> None:
        self._totals: defaultdict[ReplicaID, float] = defaultdict(float)
        self._counted_until_s: dict[str, float] = {}
        self._since_s: dict[ReplicaID, float] = {}

    def add(self, name: str, now_s: float, rate_per_s: float, replicas: list[ReplicaID]) -> None:
        passed_s = now_s - self._counted_until_s.setdefault(name, now_s)
        self._counted_until_s[name] = now_s
        for replica in replicas:
            self._totals[replica] += rate_per_s * passed_s / len(replicas)

    def total(self, replica: ReplicaID) -> float:
        return self._totals[replica]

    def counted_s(self, replica: ReplicaID, now_s: float) -> float:
        return now_s - self._since_s.setdefault(replica, now_s - 1)


def context(
    offered: Offered,
    name: str = "Model",
    *,
    now_s: float,
    rate_per_s: float = 0.0,
    target: int = 1,
    running: int | None = None,
    min_replicas: int = 1,
    waiting: float = 0.0,
    dry_run: bool = False,
    names: Sequence[str] | None = None,
    standbys: Collection[str] = (),
    **settings: float,
) -> AutoscalingContext:
    """Return what Ray passes to a policy, with this load since the last context of `name`.

    The load goes to those of the replicas that do not stand by. `settings` are floats of a report.
    """
    deployment = DeploymentID(name, "app")
    if names is None:
        names = [f"{name}{number}" for number in range(target if running is None else running)]
    replicas = [ReplicaID(each, deployment) for each in names]
    serving = [replica for replica in replicas if replica.unique_id not in standbys]
    offered.add(name, now_s, rate_per_s, serving)
    values = {
        "refused_total": 0.0,
        "queue_length": 0.0,
        "full_batch_size": 10.0,
        "full_batch_ms": 1e3 * 10 / CAPACITY_PER_S,
        "sla_response_time_ms": 1000.0,
        "sla_percentile": 99.0,
        "start_time_s": 5.0,
        "dry_run": float(dry_run),
        **AutoscalerSettings(scale_down_delay_s=30).to_floats(),
        **settings,
    }
    return AutoscalingContext(
        deployment_id=deployment,
        deployment_name=name,
        app_name="app",
        current_num_replicas=len(replicas),
        target_num_replicas=target,
        running_replicas=replicas,
        total_num_requests=waiting,
        total_queued_requests=waiting,
        aggregated_metrics={},
        raw_metrics={
            "offered_total": {
                replica: [TimeStampedValue(now_s, offered.total(replica))] for replica in replicas
            },
            "counted_s": {
                replica: [TimeStampedValue(now_s, offered.counted_s(replica, now_s))]
                for replica in replicas
            },
            **{
                metric: {replica: [TimeStampedValue(now_s, value)] for replica in replicas}
                for metric, value in values.items()
            },
            "standby": {
                replica: [TimeStampedValue(now_s, float(replica.unique_id in standbys))]
                for replica in replicas
            },
        },
        capacity_adjusted_min_replicas=min_replicas,
        capacity_adjusted_max_replicas=20,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=now_s,
        config=None,
    )
