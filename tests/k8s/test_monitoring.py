import json
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

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="prometheus is not installed (Debian: prometheus)"
)
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "k8s/monitoring/rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text())
    for path in (ROOT / "k8s/monitoring/dashboards").glob("*.json")
}
#: The board, legend and expression of each query of a panel.
QUERIES = [
    (board, target["legendFormat"], target["expr"])
    for board in BOARDS
    for panel in BOARDS[board]["panels"]
    if panel["type"] != "row"
    for target in panel["targets"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RAY_LABELS = ("application", "deployment", "replica")


def store_metrics():
    """Return the metrics of the model store's manager, and their labels, off its exposition."""
    types = re.findall(r"^# TYPE (\S+)", exposition(StoreCore({}).stats()), re.MULTILINE)
    tiered = re.compile("hits|misses|evictions|used_bytes|budget_bytes")
    return {
        name: {"source", "target"} if "_cop" in name else {"tier"} if tiered.search(name) else set()
        for name in types
    }


#: The labels of each metric.
CATALOG: dict[str, set[str]] = (
    {
        f"ray_{given.name}": {*given.labels, *RAY_LABELS}
        for given in (*REPLICA_INSTRUMENTS, *PIPELINE_INSTRUMENTS)
    }
    | {f"ray_{given.name}": set(given.labels) for given in DECISION_INSTRUMENTS.values()}
    | store_metrics()
    | {rule["record"]: {"application"} for rule in RULES if "record" in rule}
)
HISTOGRAMS = {f"ray_{given.name}" for given in REPLICA_INSTRUMENTS if given.kind == "histogram"}
#: A metric in PromQL, and the labels that select of it.
SELECTED = re.compile(r"\b((?:ray_sojourn|sojourn)[a-z0-9_:]+)(?:\{([^}]*)\})?")


@pytest.mark.slow
@needs_prometheus
@pytest.mark.parametrize("arguments", ["check rules rules.yaml", "test rules rules_test.yaml"])
def test_promtool_finds_nothing_wrong(arguments):
    checked = subprocess.run(
        ["promtool", *arguments.split()],
        cwd=ROOT / "k8s/monitoring",
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_is_tested_and_says_what_to_do(rule):
    tests = (ROOT / "k8s/monitoring/rules_test.yaml").read_text()
    assert re.search(rf"alertname: {rule['alert']}\n", tests)
    page = (ROOT / "docs/operations.md").read_text()
    assert f"\n## {rule['alert']}\n" in page
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
    assert rule["labels"]["severity"] in ("page", "ticket")


def labels_of(metric):
    base = re.sub("_(bucket|count)$", "", metric)
    return CATALOG[base] | {"le"} if base in HISTOGRAMS else CATALOG[metric]


@pytest.mark.parametrize(
    "source", [[rule["expr"] for rule in RULES], [expr for *_, expr in QUERIES]]
)
def test_expressions_are_made_of_metrics_and_labels_that_exist(source):
    for expr in source:
        used = SELECTED.findall(expr)
        assert used, expr
        for metric, selector in used:
            # Ray only estimates the sums of histograms, which have no labels here.
            assert set(re.findall(r"(\w+)=", selector)) <= labels_of(metric), expr


def test_a_query_groups_by_labels_and_has_variables_that_exist():
    for query in QUERIES:
        board, legend, expr = query
        used = SELECTED.findall(expr)
        by = ",".join(re.findall(r"\bby \(([^)]*)\)", expr))
        grouped = {*re.findall(r"\w+", by)}
        assert grouped <= set.union(*(labels_of(metric) for metric, _ in used)) | {"le"}, query
        assert {*re.findall(r"\{\{(\w+)\}\}", legend)} <= grouped | {"deployment"}, query
        defined = {variable["name"] for variable in BOARDS[board]["templating"]["list"]}
        variables = set(re.findall(r"\$(\w+)", expr)) - {"__rate_interval"}
        assert variables <= defined, query
        # Whoever selects a replica or a pipeline sees that one only.
        assert defined & {"replica", "pipeline"} <= variables, query
