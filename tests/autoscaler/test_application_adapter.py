"""The policy of an application with a budget, called with contexts made up by the test."""

import warnings
from typing import Any

import pytest

from autoscaler import scaled_deployments
from policy.errors import InvalidInputError
from tests.support.stores import Store

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray warns while it is imported
    from ray.serve._private.common import DeploymentID

    from autoscaler import ray_adapter
    from autoscaler.application_adapter import SojournBudgetPolicy
    from autoscaler.ray import metrics as ray_metrics
    from autoscaler.ray_adapter import SojournAutoscalingPolicy
    from tests.support.ray_contexts import Offered, context


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    monkeypatch.setattr(scaled_deployments, "_deployments", {})
    monkeypatch.setattr(ray_adapter, "store", lambda: store)
    monkeypatch.setattr(ray_metrics, "export", lambda *_: None)


class Application:
    """Two deployments under one budget; ordered replicas are ready at once."""

    def __init__(self, budget: int) -> None:
        self.policy = SojournBudgetPolicy(replica_budget=budget)
        self.targets = {"First": 1, "Second": 1}
        self._offered = Offered()

    def run(self, seconds: range, rates_per_s: dict[str, float], **given: Any) -> dict[str, int]:
        for now_s in seconds:
            contexts = {
                DeploymentID(name, "app"): context(
                    self._offered,
                    name,
                    now_s=now_s,
                    rate_per_s=rates_per_s[name],
                    target=target,
                    **given.get(name, {}),
                )
                for name, target in self.targets.items()
            }
            replicas, _ = self.policy(contexts)
            self.targets = {key.name: number for key, number in replicas.items()}
        return self.targets


def test_a_sufficient_budget_gives_each_deployment_what_it_wants() -> None:
    targets = Application(12).run(range(1000, 1020), {"First": 250, "Second": 10})
    alone, offered = SojournAutoscalingPolicy(), Offered()
    for now_s in range(1000, 1020):
        replicas, _ = alone(context(offered, now_s=now_s, rate_per_s=250))
    assert targets == {"First": replicas, "Second": 1}


def test_an_insufficient_budget_is_kept_and_the_larger_load_gets_more() -> None:
    targets = Application(5).run(range(1000, 1020), {"First": 500, "Second": 180})
    assert sum(targets.values()) == 5
    assert targets["First"] > targets["Second"]


def test_a_deployment_without_reports_keeps_its_replicas_in_a_shortage() -> None:
    application = Application(5)
    application.run(range(1000, 1020), {"First": 100, "Second": 250})
    held = application.targets["Second"]
    assert held > 1
    silent = {"Second": {"running": 0}}
    application.run(range(1020, 1035), {"First": 100, "Second": 250}, **silent)
    targets = application.run(range(1035, 1060), {"First": 900, "Second": 250}, **silent)
    assert targets["Second"] == held
    assert sum(targets.values()) <= 5


def test_a_dry_run_keeps_its_share_of_the_budget() -> None:
    application = Application(4)
    application.targets["Second"] = 2
    dry = {"Second": {"dry_run": True}}
    targets = application.run(range(1000, 1020), {"First": 900, "Second": 0}, **dry)
    assert targets == {"First": 2, "Second": 2}


def test_a_replica_that_ray_starts_counts_towards_the_budget() -> None:
    application = Application(3)
    application.targets = {"First": 3, "Second": 0}
    waking = {"Second": {"running": 0, "waiting": 2.0, "min_replicas": 0}}
    targets = application.run(range(1000, 1002), {"First": 900, "Second": 0}, **waking)
    assert targets == {"First": 2, "Second": 1}


def test_minima_above_the_budget_are_granted() -> None:
    minima = {"First": {"min_replicas": 2}, "Second": {"min_replicas": 2}}
    targets = Application(3).run(range(1000, 1020), {"First": 900, "Second": 0}, **minima)
    assert targets == {"First": 2, "Second": 2}


@pytest.mark.parametrize("budget", [0, -1, 2.5, True, "3", None])
def test_an_invalid_budget_is_refused(budget: Any) -> None:
    with pytest.raises(InvalidInputError, match="replica_budget: must be a whole number"):
        SojournBudgetPolicy(replica_budget=budget)
