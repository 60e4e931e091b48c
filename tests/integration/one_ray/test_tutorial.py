"""The tutorial from its third step on, against a real service; `tests.test_guides` has the rest."""

import pytest
import yaml

from tests.support.processes.pages import run_block
from tests.support.processes.services import ROOT, Running, get
from tests.support.readme import blocks
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration

PAGE = "docs/tutorial.md"
#: The application gets a name that no other test has, so that its autoscaler knows of no load yet.
OLD, NEW = "- name: googlenet\n", "- name: tutorial\n"


def test_the_tutorial(one_ray: Running, tmp_path):
    _, _, _, ask, load, look, tighten, more, why = blocks("console", PAGE)
    config = tmp_path / "first.yaml"
    config.write_text((ROOT / "configs/emulated-p4.yaml").read_text().replace(OLD, NEW))
    service = one_ray.serve_instead(yaml.safe_load(config.read_text()))
    shell = shell_for(tmp_path, service.url, service.summary["dashboard"])
    assert '"outputs"' in shell(ask)
    replicas = set(service.replicas())
    assert "right answers" in shell(load)
    control_limit, max_wait_ms = shell(look).split()
    assert int(control_limit) >= 1
    assert max_wait_ms == "None" or 0 < float(max_wait_ms) < 500
    shell(tighten)
    words = "99% of requests within 250 ms"
    policy = f"{service.url}/sojourn/policy"
    assert wait_for(lambda: get(policy).json()["sla_in_words"] == words)
    assert replicas <= set(service.replicas())
    shell(more)
    assert wait_for(lambda: len(service.replicas()) > 1)
    assert "scale out 1 -> " in shell(why)


def shell_for(folder, url, dashboard):
    """Run commands on the ports of a service; a shared machine need not keep the SLA."""
    real = {
        "http://127.0.0.1:8000": url,
        "http://127.0.0.1:8265": dashboard,
        "sojourn loadtest": f"sojourn loadtest --url {url}",
        " --sla 500ms@99": " --sla 5s@50",
    }
    return lambda commands: run_block(commands, folder, real)
