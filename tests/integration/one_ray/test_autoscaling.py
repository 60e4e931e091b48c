"""The autoscaler in Ray's controller: an emulated device, real load, and a changing config.

All tests share one service and run in order; each leaves it in the state that the next one needs.
"""

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes.services import BIN, Running, get, load_document, post, serving_late
from tests.support.waiting import LIMIT_S, wait_for

pytestmark = pytest.mark.integration

NAME = "autoscaled"
#: One replica serves 140/s under the config's SLA of 500 ms, and 83/s under the strict one.
RATE_PER_S = 80
#: That two models share; and of a request to them.
BUDGET, ROWS = 3, 8
STRICT = {"response_time_ms": 200, "percentile": 99.99}
TIMES = {"scale_down_delay_s": 5, "expert": {"window_s": 6, "scale_to_zero_delay_s": 2}}


def document_of(**changes):
    """Return the config with changes to the SLA, the autoscaler, or the minimum of replicas.

    What is late is refused, unless `late` is true.
    """
    document = load_document("emulated-p4.yaml")
    (deployment,) = document["applications"][0]["deployments"]
    deployment["user_config"]["autoscaler"] = {**TIMES, **changes.get("autoscaler", {})}
    deployment["user_config"]["sla"].update(changes.get("sla", {}))
    deployment["autoscaling_config"]["min_replicas"] = changes.get("min_replicas", 1)
    document["applications"][0]["name"] = NAME
    return serving_late(document) if changes.get("late") else document


@pytest.fixture(scope="module")
def service(one_ray: Running):
    return one_ray.serve_instead(document_of())


@contextmanager
def load(service: Running, *more, path="", rate_per_s=RATE_PER_S):
    url = f"{service.url}{path}"
    command = [str(BIN / "sojourn"), "loadtest", "--url", url, "--model", "googlenet"]
    options = ["--arrival-rate", str(rate_per_s), "--duration-s", "300", "--json", *more]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def test_a_changed_sla_changes_the_replicas_and_a_restart_of_the_controller_does_not(
    service: Running,
):
    (first,) = service.replicas()
    service.redeploy(document_of(sla=STRICT, autoscaler={"dry_run": True}))
    with load(service):
        assert wait_for(lambda: arrival_rate(service) > 0.8 * RATE_PER_S)

        def would_scale_out():
            decision = newest(service)
            begins = str(decision["reason"]).startswith("dry run: would scale out")
            return begins and int(decision["replicas"]) > 1

        assert wait_for(would_scale_out)
        assert list(service.replicas()) == [first]

        # Held, so that the replicas are the same if this machine is too busy to send the load.
        service.redeploy(document_of(sla=STRICT, autoscaler={"scale_down_delay_s": 120}))
        assert wait_for(lambda: all_run(service) and len(service.replicas()) >= 2)
        assert first in service.replicas()

        before, replicas = log(service), set(service.replicas())
        (controller,) = (
            process
            for process, words in service.processes().items()
            if words[0].startswith("ray::ServeController")
        )
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait(LIMIT_S)
        killed_s = newest(service)["time_s"]
        # The new controller continues with the history of the old one.
        assert wait_for(lambda: newest(service)["time_s"] > killed_s + 2)
        # Its first seconds may lack reports that were due while there was no controller.
        assert wait_for(lambda: (newest(service)["arrival_rate_per_s"] or 0) > 0.5 * RATE_PER_S)
        after = log(service)
        assert after["decisions"][: len(before["decisions"])] == before["decisions"]
        assert all(
            entry["replicas"] >= len(replicas)
            for entry in after["decisions"]
            if entry["time_s"] > killed_s
        )
        assert replicas <= set(service.replicas())


def test_every_decision_is_exported_as_metrics(service: Running):
    wanted = {"replicas_decided", "replicas_required", "offered_requests_per_second"}
    # A new controller has not exported all of them yet.
    assert wait_for(lambda: wanted <= set(autoscaler_metrics(service)))
    assert autoscaler_metrics(service)["replicas_decided"] >= 1


def test_an_idle_service_goes_to_zero_and_its_next_requests_are_answered(service: Running):
    numbers = [float(number) for number in range(8)]
    with ThreadPoolExecutor(len(numbers)) as clients:

        def answers():
            return list(clients.map(lambda number: infer(service, number), numbers))

        service.redeploy(document_of(min_replicas=0, late=True))
        # Also send requests while the last replica drains.
        assert wait_for(lambda: deployment_of(service)["target_num_replicas"] == 0)
        assert answers() == numbers
        assert wait_for(lambda: not service.replicas())
        assert answers() == numbers
    assert len(service.replicas()) == 1


def test_a_budget_goes_where_requests_would_be_late_and_is_never_exceeded(
    service: Running, tmp_path
):
    """For the first load a model needs two replicas, and for the second three."""
    document = document_of()
    (application,) = document["applications"]
    scaling = application["deployments"][0]["autoscaling_config"]
    scaling["policy"]["policy_kwargs"] = {"replica_budget": BUDGET}
    document["applications"] = [
        {**application, "name": name, "route_prefix": f"/{name}"} for name in ("first", "second")
    ]
    service.serve_instead(document)
    rows = {"name": "input", "datatype": "FP32", "shape": [ROWS, 1], "data": [7.0] * ROWS}
    (tmp_path / "cases").write_text(json.dumps({"inputs": [rows]}))
    cases, seen = ("--cases", str(tmp_path / "cases")), []

    def counts():
        seen.append([replicas_of(service, name) for name in ("first", "second")])
        return seen[-1]

    with load(service, *cases, path="/first", rate_per_s=120 / ROWS):
        assert wait_for(lambda: counts() == [2, 1])
    with load(service, *cases, path="/second", rate_per_s=300 / ROWS):
        assert wait_for(lambda: counts() == [1, 2])
        reason = f"within a budget of {BUDGET}"
        assert wait_for(lambda: reason in newest(service, "/second")["reason"])
    assert max(map(sum, seen)) <= BUDGET


def replicas_of(service: Running, name):
    """Return how many replicas of an application run or start."""
    states = [replica["state"] for replica in deployment_of(service, name)["replicas"]]
    return states.count("RUNNING") + states.count("STARTING")


def arrival_rate(service: Running):
    content = get(f"{service.url}/sojourn/policy").json()
    return float(content["arrival_rate_per_s"])


def log(service: Running, path=""):
    return get(f"{service.url}{path}/sojourn/autoscaler").json()


def newest(service: Running, path=""):
    # There is no decision at first.
    return log(service, path)["newest"] or {"reason": "", "target_replicas": 0, "time_s": 0.0}


def deployment_of(service: Running, name=NAME):
    """Return the status of the deployment from Serve's API."""
    return service.applications()[name]["deployments"]["Replica"]


def all_run(service: Running):
    """Return whether exactly the ordered replicas run."""
    deployment = deployment_of(service)
    states = [replica["state"] for replica in deployment["replicas"]]
    return states == ["RUNNING"] * deployment["target_num_replicas"]


def autoscaler_metrics(service: Running):
    prefix = "ray_sojourn_autoscaler_"
    text = get(service.summary["metrics_url"]).text
    return {
        sample.name.removeprefix(prefix): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(prefix) and sample.labels["application"] == NAME
    }


def infer(service: Running, number):
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1], "data": [number]}
    answer = post(f"{service.url}/v2/models/googlenet/infer", json={"inputs": [tensor]})
    assert answer.status_code == 200, answer.text
    return float(answer.json()["outputs"][0]["data"][0])
