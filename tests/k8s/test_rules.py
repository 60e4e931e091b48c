"""Prometheus accepts the rules, they fire when they should, and every alert is explained."""

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from autoscaler.metrics import DECISION_INSTRUMENTS
from deployments.modelstore.core.store_core import StoreCore
from deployments.modelstore.manager.prometheus import exposition
from deployments.observability.replica_instruments import REPLICA_INSTRUMENTS
from deployments.pipelines.serving.metrics import PIPELINE_INSTRUMENTS
from tests.support.readme import ROOT

RULES = [
    rule
    for group in yaml.safe_load((ROOT / "k8s/monitoring/rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


@pytest.mark.slow
@needs_promtool
@pytest.mark.parametrize("arguments", ["check rules rules.yaml", "test rules rules_test.yaml"])
def test_promtool_finds_nothing_wrong(arguments: str) -> None:
    checked = subprocess.run(
        ["promtool", *arguments.split()],
        cwd=ROOT / "k8s/monitoring",
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_is_made_of_metrics_that_exist(rule: dict[str, Any]) -> None:
    instruments = [*REPLICA_INSTRUMENTS, *DECISION_INSTRUMENTS.values(), *PIPELINE_INSTRUMENTS]
    known = {f"ray_{given.name}" for given in instruments}
    known |= set(re.findall(r"^# TYPE (\S+)", exposition(StoreCore({}).stats()), re.MULTILINE))
    known |= {other["record"] for other in RULES if "record" in other}
    used = re.findall(r"\b(?:ray_sojourn_|sojourn_|sojourn:)[a-z0-9_:]+", rule["expr"])
    assert used
    assert set(used) <= known


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_is_tested_and_says_what_to_do(rule: dict[str, Any]) -> None:
    tests = (ROOT / "k8s/monitoring/rules_test.yaml").read_text()
    assert re.search(rf"alertname: {rule['alert']}\n", tests)
    page = (ROOT / "docs/operations.md").read_text()
    assert f"\n## {rule['alert']}\n" in page
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
    assert rule["labels"]["severity"] in ("page", "ticket")
