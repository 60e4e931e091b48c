"""A real Prometheus scrapes a running service: every metric arrives, with the right value."""

import shutil

import httpx
import pytest

from autoscaler.metrics import DECISION_INSTRUMENTS
from deployments.observability.replica_instruments import REPLICA_INSTRUMENTS
from tests.support.metrics.prometheus import Prometheus
from tests.support.processes.services import Running, get, load_document
from tests.support.waiting import LIMIT_S, wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("prometheus") is None,
        reason="prometheus is not installed (Debian: prometheus)",
    ),
]

#: Of the application: Ray still exports what replicas of earlier ones have counted.
NAME = "scraped"
OURS = f'{{application="{NAME}"}}'
REQUESTS, SLA_S = 40, 20.0
#: They are exported when they happen for the first time.
EVENTS = {
    *("sojourn_refused_rows_total", "sojourn_late_rows_total", "sojourn_pruned_rows_total"),
    *("sojourn_refused_too_late_rows_total", "sojourn_cancelled_rows_total"),
    *("sojourn_admitted_requests_total", "sojourn_denied_requests_total"),
    *("sojourn_model_errors_total", "sojourn_solver_failures_total"),
    *("sojourn_profile_refits_total", "sojourn_energy_joules_total"),
}
#: They need minutes of load, or what this run does not have.
UNKNOWN_YET = {
    "sojourn_predicted_response_time_seconds",
    "sojourn_power_watts",
    *(given.name for given in DECISION_INSTRUMENTS.values()),
}


@pytest.fixture(scope="module")
def service(one_ray: Running):
    document = load_document("digits.yaml")
    (application,) = document["applications"]
    application["name"] = NAME
    # So long that nothing is late on any machine.
    application["deployments"][0]["user_config"]["sla"]["response_time_ms"] = 1e3 * SLA_S
    return one_ray.serve_instead(document)


@pytest.fixture(scope="module")
def prometheus(service: Running, tmp_path_factory):
    target = httpx.URL(service.summary["metrics_url"])
    folder = tmp_path_factory.mktemp("prometheus")
    with Prometheus(folder, f"{target.host}:{target.port}") as running:
        example = get(f"{service.url}/sojourn/example").json()
        with httpx.Client(timeout=LIMIT_S) as client:
            for _ in range(REQUESTS):
                infer = client.post(f"{service.url}/v2/models/digits/infer", json=example)
                assert infer.status_code == 200
            assert client.get(f"{service.url}/v2/models/other").status_code == 404
        yield running


def test_every_metric_arrives(prometheus: Prometheus):
    suffix = {"histogram": "_bucket", "counter": "", "gauge": ""}
    instruments = [*REPLICA_INSTRUMENTS, *DECISION_INSTRUMENTS.values()]
    expected = {
        f"ray_{given.name}{suffix[given.kind]}"
        for given in instruments
        if given.name not in EVENTS | UNKNOWN_YET
    } | {"ray_sojourn_autoscaler_replicas_decided"}

    def arrived():
        return set(prometheus.get("label/__name__/values", **{"match[]": OURS}))

    wait_for(lambda: expected <= arrived())
    assert expected - arrived() == set()


def test_metrics_have_the_right_values_after_a_known_load(prometheus: Prometheus):
    for expression, value in {
        f"sum(ray_sojourn_offered_rows_total{OURS})": REQUESTS,
        f"sum(ray_sojourn_completed_rows_total{OURS})": REQUESTS,
        f"sum(ray_sojourn_answered_rows_total{OURS})": REQUESTS,
        f'sum(ray_sojourn_answers_total{{application="{NAME}",status="404"}})': 1,
        f"sum(ray_sojourn_response_time_seconds_count{OURS})": REQUESTS,
        f"sum(ray_sojourn_batches_total{OURS})": REQUESTS,
        f"max(ray_sojourn_sla_response_time_seconds{OURS})": SLA_S,
        f"max(ray_sojourn_sla_percentile_ratio{OURS})": 0.99,
        f"round(sojourn:sla_budget:ratio{OURS}, 0.001)": 0.01,
    }.items():

        def is_right(expression=expression, value=value):
            return prometheus.value(expression) == pytest.approx(value)

        assert wait_for(is_right), expression


def test_no_alert_fires_where_all_is_well(prometheus: Prometheus):
    assert wait_for(lambda: prometheus.value(f"sojourn:sla_budget:ratio{OURS}") > 0)
    groups = prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
    alerts = [alert["labels"] for alert in prometheus.get("alerts")["alerts"]]
    assert [labels for labels in alerts if labels.get("application", NAME) == NAME] == []
