"""Rules and dashboards ask for what there is, are explained, and Prometheus answers them."""

import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from autoscaler.metrics import DECISION_INSTRUMENTS
from deployments.observability.replica_instruments import REPLICA_INSTRUMENTS
from deployments.pipelines.serving.metrics import PIPELINE_INSTRUMENTS
from tests.support.metrics.dashboards import BOARDS, QUERIES, PanelQuery
from tests.support.metrics.exposed_catalog import (
    APPLICATION,
    RAY_LABELS,
    exposed,
    store_instruments,
)
from tests.support.metrics.prometheus import Prometheus
from tests.support.readme import ROOT
from tests.support.waiting import wait_for

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="prometheus is not installed (Debian: prometheus)"
)
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "k8s/monitoring/rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
#: The labels of each metric.
CATALOG: dict[str, set[str]] = (
    {
        f"ray_{given.name}": {*given.labels, *RAY_LABELS}
        for given in (*REPLICA_INSTRUMENTS, *PIPELINE_INSTRUMENTS)
    }
    | {f"ray_{given.name}": set(given.labels) for given in DECISION_INSTRUMENTS.values()}
    | {given.name: set(given.labels) for given in store_instruments()}
    | {rule["record"]: {"application"} for rule in RULES if "record" in rule}
)
HISTOGRAMS = {f"ray_{given.name}" for given in REPLICA_INSTRUMENTS if given.kind == "histogram"}
#: A metric in PromQL, and the labels that select of it.
SELECTED = re.compile(r"\b((?:ray_sojourn|sojourn)[a-z0-9_:]+)(?:\{([^}]*)\})?")


@pytest.mark.slow
@needs_prometheus
@pytest.mark.parametrize("arguments", ["check rules rules.yaml", "test rules rules_test.yaml"])
def test_promtool_finds_nothing_wrong(arguments: str) -> None:
    checked = subprocess.run(
        ["promtool", *arguments.split()],
        cwd=ROOT / "k8s/monitoring",
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_is_tested_and_says_what_to_do(rule: dict[str, Any]) -> None:
    tests = (ROOT / "k8s/monitoring/rules_test.yaml").read_text()
    assert re.search(rf"alertname: {rule['alert']}\n", tests)
    page = (ROOT / "docs/operations.md").read_text()
    assert f"\n## {rule['alert']}\n" in page
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
    assert rule["labels"]["severity"] in ("page", "ticket")


def labels_of(metric: str) -> set[str]:
    """Return the labels of a metric, or of a series of a histogram; fail if there is none."""
    base = re.sub("_(bucket|count)$", "", metric)
    return CATALOG[base] | {"le"} if base in HISTOGRAMS else CATALOG[metric]


@pytest.mark.parametrize("source", [[rule["expr"] for rule in RULES], [q.expr for q in QUERIES]])
def test_expressions_are_made_of_metrics_and_labels_that_exist(source: list[str]) -> None:
    for expr in source:
        used = SELECTED.findall(expr)
        assert used, expr
        for metric, selector in used:
            # Ray only estimates the sums of histograms, which have no labels here.
            assert set(re.findall(r"(\w+)=", selector)) <= labels_of(metric), expr


def test_a_query_groups_by_labels_and_has_variables_that_exist() -> None:
    for query in QUERIES:
        used = SELECTED.findall(query.expr)
        by = ",".join(re.findall(r"\bby \(([^)]*)\)", query.expr))
        grouped = {*re.findall(r"\w+", by)}
        assert grouped <= set.union(*(labels_of(metric) for metric, _ in used)) | {"le"}, query
        assert {*re.findall(r"\{\{(\w+)\}\}", query.legend)} <= grouped | {"deployment"}, query
        defined = {variable["name"] for variable in BOARDS[query.board]["templating"]["list"]}
        variables = set(re.findall(r"\$(\w+)", query.expr)) - {"__rate_interval"}
        assert variables <= defined, query
        # Whoever selects a replica or a pipeline sees that one only.
        assert defined & {"replica", "pipeline"} <= variables, query


#: Rates of counters and values of gauges: 2% of the answers are late under an SLA of 99%, and the
#: autoscaler holds three replicas where two are needed, one of them stuck.
VALUES = {
    "sojourn_sla_percentile_ratio": 0.99,
    "sojourn_sla_response_time_seconds": 0.1,
    "sojourn_answered_rows_total": 500.0,
    "sojourn_late_rows_total": 10.0,
    "sojourn_completed_rows_total": 480.0,
    "sojourn_batches_total": 30.0,
    "sojourn_device_busy_seconds_total": 0.6,
    "sojourn_bottleneck{event_loop}": 0.0,
    "sojourn_bottleneck{neither}": 0.0,
    "sojourn_autoscaler_replicas_decided": 3.0,
    "sojourn_autoscaler_replicas_required": 2.0,
    "sojourn_autoscaler_stuck_replicas": 1.0,
    "sojourn_autoscaler_silent_replicas": 0.0,
    "sojourn_autoscaler_sla_rate_requests_per_second": 300.0,
    "sojourn_autoscaler_model_correction_ratio": 0.8,
    "sojourn_stage_busy_seconds_total": 3.0,
    "sojourn_stage_believed_busy_seconds_total": 2.7,
    "sojourn_stage_batched_items_total": 240.0,
    "sojourn_stage_batches_total": 30.0,
    "sojourn_store_hits_total": 3.0,
    "sojourn_store_copied_bytes_total": 4e9,
    "sojourn_store_copy_seconds_total": 2.0,
}
#: What panels show then, by board, title and legend. No value depends on how long it was scraped.
SHOWN = {
    ("sla", "In time, last 5 minutes", "in time"): [0.98],
    ("sla", "Budget left, 28 days", "left"): [-1.0],
    ("sla", "Burn rate, 1 hour", "times the budget"): [2.0],
    ("sla", "What limits the replicas", "{{stage}}"): [0, 0, 2],
    ("replica", "What limits each replica", "{{replica}}"): [1, 1],
    ("replica", "Batch time", "mean {{replica}}"): [0.01, 0.01],
    ("autoscaler", "Demand beside what is offered", "capacity within the SLA"): [600],
    ("autoscaler", "Replicas: needed, ordered, serving", "serving"): [2],
    ("autoscaler", "What decides the number", "held above the need"): [1],
    ("autoscaler", "What decides the number", "replicas do not report"): [0],
    ("autoscaler", "What decides the number", "replicas do not start"): [4],
    ("autoscaler", "Load that one replica takes", "by the model alone"): [375],
    ("autoscaler", "Opens that found their model", "{{tier}}"): [0.75, 0.75],
    ("autoscaler", "Speed of copies", "{{source}} to {{target}}"): [2e9],
    ("pipeline", "Batch time: believed beside measured", "measured {{stage}}"): 3 * [0.1],
    ("pipeline", "Batch time: believed beside measured", "believed {{stage}}"): 3 * [0.09],
    ("pipeline", "Mean batch", "{{stage}}"): [8, 8, 8],
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with exposed(VALUES) as target, Prometheus(folder, target) as running:
        assert wait_for(lambda: running.value("sojourn:sla_miss:ratio_rate5m") > 0)
        yield running


@pytest.mark.slow
@needs_prometheus
def test_prometheus_answers_every_query_with_what_the_panels_title_says(
    prometheus: Prometheus,
) -> None:
    def answer(query: PanelQuery) -> list[float]:
        found = prometheus.values(query.filled(APPLICATION, "5s"))
        return sorted(filter(math.isfinite, found))

    answers = {}
    for query in QUERIES:
        assert wait_for(partial(answer, query)), query
        answers[query.board, query.title, query.legend] = answer(query)
    for name, values in SHOWN.items():
        assert answers[name] == pytest.approx(values), name
