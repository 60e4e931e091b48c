"""The commands of the pages, run as written in a new project, against a real service."""

import re
from collections.abc import Callable

import pytest
import yaml

from tests.support.processes.pages import run_block
from tests.support.processes.services import Running, get, serving_late
from tests.support.readme import blocks
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration

OPERATIONS = "docs/operations.md"
Shell = Callable[[str], str]


@pytest.fixture(scope="module")
def service(one_ray: Running, project):
    return one_ray.serve_instead(serving_late(yaml.safe_load((project / "serve.yaml").read_text())))


@pytest.fixture
def shell(project, service: Running):
    """Run commands in the project's folder, on the ports of this service."""

    def run(commands):
        real = {
            "http://127.0.0.1:8000": service.url,
            "http://127.0.0.1:8265": service.summary["dashboard"],
            # Where a page names a URL of its own, that comes later and counts.
            "sojourn loadtest": f"sojourn loadtest --url {service.url}",
        }
        return run_block(commands, project, real)

    return run


def test_overload(shell):
    look, prepare = blocks("console", OPERATIONS, "Overload")
    rows, reason = shell(look).splitlines()
    assert {"refused", "late", "expired"} <= set(re.findall(r"'(\w+)'", rows))
    assert re.search(r"\d", reason)
    assert "5000 requests/s, 99% of requests within 100 ms: " in shell(prepare)


def test_debugging(shell):
    logs, asks = blocks("console", OPERATIONS, "Logs and debugging")
    assert re.search(r"^replica_classifier_Replica_\w+[.]log$", shell(logs), re.MULTILINE)
    assert '"features"' in shell(asks)


def test_prometheus_finds_the_metrics(shell, service: Running):
    (command,) = blocks("console", OPERATIONS, "Prometheus")
    (config,) = blocks("yaml", OPERATIONS, "Prometheus")
    ((path,),) = (
        group["files"] for job in yaml.safe_load(config)["scrape_configs"]
        for group in job["file_sd_configs"]
    )  # fmt: skip
    assert path in command
    targets = [target for group in yaml.safe_load(shell(command)) for target in group["targets"]]
    assert service.summary["metrics_url"] in [f"http://{target}/metrics" for target in targets]


def test_upgrades(shell, service: Running, project):
    live, beside = blocks("console", "docs/deploying.md", "Upgrades")
    (script,) = blocks("python", "docs/deploying.md", "Upgrades")
    (project / "beside.py").write_text(script)
    shell(live)
    policy = f"{service.url}/sojourn/policy"
    words = "99% of requests within 80 ms"
    assert wait_for(lambda: get(policy).json()["sla_in_words"] == words)
    replicas = set(service.replicas())
    *deploy, load = beside.strip().splitlines()
    shell("\n".join(deploy))
    metadata = f"{service.url}/next/v2/models/classifier"

    def is_up():
        answer = get(metadata)
        return answer.status_code == 200 and answer.json()["versions"] == ["2"]

    assert wait_for(is_up)
    assert "right answers" in shell(load)
    # The old version was not touched.
    assert replicas <= set(service.replicas())
    assert get(f"{service.url}/v2/models/classifier").json()["versions"] == ["1"]
