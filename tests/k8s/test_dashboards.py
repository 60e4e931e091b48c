"""The dashboards ask for what there is, are explained, and Prometheus answers their queries."""

import math
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from autoscaler.metrics import DECISION_INSTRUMENTS
from deployments.observability.replica_instruments import REPLICA_INSTRUMENTS
from deployments.pipelines.serving.metrics import PIPELINE_INSTRUMENTS
from tests.support.metrics.dashboards import BOARDS, QUERIES, PanelQuery, panels
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
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)"
)
PANELS = [(board, panel) for board in BOARDS for panel in panels(board)]
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "k8s/monitoring/rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
#: The labels of each metric.
CATALOG = (
    {
        f"ray_{given.name}": {*given.labels, *RAY_LABELS}
        for given in (*REPLICA_INSTRUMENTS, *PIPELINE_INSTRUMENTS)
    }
    | {f"ray_{given.name}": set(given.labels) for given in DECISION_INSTRUMENTS.values()}
    | {given.name: set(given.labels) for given in store_instruments()}
    | {name: {"application"} for name in RECORDED}
)
HISTOGRAMS = {f"ray_{given.name}" for given in REPLICA_INSTRUMENTS if given.kind == "histogram"}
#: Names in PromQL: metrics, and the labels of selectors, of `by` and of legends.
METRIC = re.compile(r"\b((?:ray_sojourn|sojourn)[a-z0-9_:]+)")
SELECTED = re.compile(METRIC.pattern + r"(?:\{([^}]*)\})?")


def label(query: PanelQuery) -> str:
    return f"{query.board}: {query.title}: {query.legend}"


def metrics_of(expr: str) -> set[str]:
    """Return the metrics of a query; those of histograms without their suffix."""
    found = set()
    for name in METRIC.findall(expr):
        base = re.sub("_(bucket|count)$", "", name)
        found.add(base if base in HISTOGRAMS else name)
    return found


@pytest.mark.parametrize("query", QUERIES, ids=label)
def test_a_query_asks_for_metrics_labels_and_variables_that_exist(query: PanelQuery) -> None:
    used = metrics_of(query.expr)
    assert used
    assert used <= CATALOG.keys()
    for name, selector in SELECTED.findall(query.expr):
        base = re.sub("_(bucket|count)$", "", name)
        known = CATALOG.get(name) or CATALOG[base] | {"le"}
        assert set(re.findall(r"(\w+)=", selector)) <= known
    grouped = [
        name.strip()
        for names in re.findall(r"\bby \(([^)]*)\)", query.expr)
        for name in names.split(",")
    ]
    everywhere = set.union(*(CATALOG[name] for name in used)) | {"le"}
    assert set(grouped) <= everywhere
    assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= {*grouped} | {"deployment"}
    # Ray only estimates the sums of histograms.
    assert not [name for name in METRIC.findall(query.expr) if name.endswith("_seconds_sum")]
    assert "rows_sum" not in query.expr
    defined = {variable["name"] for variable in BOARDS[query.board]["templating"]["list"]}
    variables = set(re.findall(r"\$(\w+)", query.expr)) - {"__rate_interval"}
    assert variables <= defined
    # Whoever selects a replica or a pipeline sees that one only.
    assert defined & {"replica", "pipeline"} <= variables


@pytest.mark.parametrize(
    ("board", "panel"), PANELS, ids=[f"{board}: {panel['title']}" for board, panel in PANELS]
)
def test_a_panel_is_explained_and_has_a_unit(board: str, panel: dict[str, Any]) -> None:
    page = re.search(r"\. See ((?:docs/\w+|README)\.md)(?:#([\w-]+))?\.$", panel["description"])
    assert page, panel["description"]
    text = (ROOT / page[1]).read_text()
    if page[2]:
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        assert page[2] in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    references = [target["refId"] for target in panel["targets"]]
    assert len(references) == len(set(references))
    assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


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
    "sojourn_stage_queue_length_items": 5.0,
    "sojourn_stage_busy_seconds_total": 3.0,
    "sojourn_stage_believed_busy_seconds_total": 2.7,
    "sojourn_stage_batched_items_total": 240.0,
    "sojourn_stage_batches_total": 30.0,
    "sojourn_store_hits_total": 3.0,
    "sojourn_store_copied_bytes_total": 4e9,
    "sojourn_store_copy_seconds_total": 2.0,
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with exposed(VALUES) as target, Prometheus(folder, target) as running:
        assert wait_for(lambda: running.value("sojourn:sla_miss:ratio_rate5m") > 0)
        yield running


def answer(prometheus: Prometheus, query: PanelQuery) -> list[float]:
    """Return the finite values of a query, once it has any."""
    expr = query.filled(APPLICATION, "5s")
    found: list[float] = []

    def answered() -> list[float]:
        found[:] = filter(math.isfinite, prometheus.values(expr))
        return found

    assert wait_for(answered), expr
    return found


@pytest.mark.slow
@needs_prometheus
def test_prometheus_answers_every_query(prometheus: Prometheus) -> None:
    for query in QUERIES:
        assert answer(prometheus, query), label(query)


@pytest.mark.slow
@needs_prometheus
@pytest.mark.parametrize(
    ("board", "title", "legend", "values"),
    [
        ("sla", "In time, last 5 minutes", "in time", [0.98]),
        ("sla", "In time, 28 days", "in time", [0.98]),
        ("sla", "Budget left, 28 days", "left", [-1.0]),
        ("sla", "Burn rate, 1 hour", "times the budget", [2.0]),
        ("sla", "Burn rate by window", "6h", [2.0]),
        ("sla", "What it costs", "replicas", [2]),
        ("sla", "What limits the replicas", "{{stage}}", [0, 0, 2]),
        ("replica", "What limits each replica", "{{replica}}", [1, 1]),
        ("replica", "Mean batch", "{{replica}}", [8, 8]),
        ("replica", "Batch time", "mean {{replica}}", [0.01, 0.01]),
        ("autoscaler", "Demand beside what is offered", "capacity within the SLA", [600]),
        ("autoscaler", "Replicas: needed, ordered, serving", "serving", [2]),
        ("autoscaler", "What decides the number", "held above the need", [1]),
        ("autoscaler", "What decides the number", "kept below the need", [0]),
        ("autoscaler", "What decides the number", "replicas do not report", [0]),
        ("autoscaler", "What decides the number", "replicas do not start", [4]),
        ("autoscaler", "Load that one replica takes", "by the model alone", [375]),
        ("autoscaler", "Opens that found their model", "{{tier}}", [0.75, 0.75]),
        ("pipeline", "Waiting", "{{stage}}", [10, 10, 10]),
        ("pipeline", "Batch time: believed beside measured", "measured {{stage}}", 3 * [0.1]),
        ("pipeline", "Batch time: believed beside measured", "believed {{stage}}", 3 * [0.09]),
        ("pipeline", "Mean batch", "{{stage}}", [8, 8, 8]),
        ("autoscaler", "Speed of copies", "{{source}} to {{target}}", [2e9]),
    ],
)
def test_a_panel_shows_what_its_title_says(
    prometheus: Prometheus, board: str, title: str, legend: str, values: list[float]
) -> None:
    (query,) = (
        query
        for query in QUERIES
        if (query.board, query.title, query.legend) == (board, title, legend)
    )
    # No value here depends on how long the counters have been scraped.
    assert sorted(answer(prometheus, query)) == pytest.approx(values)
