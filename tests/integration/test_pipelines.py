"""A pipeline on a real Ray: answers, a killed worker, and an SLA changed live.

`pipeline_calls` runs in its own process and prints what it observed.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.processes.services import ROOT

pytestmark = pytest.mark.integration

TIMEOUT_S = 600


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.pipeline_calls"],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "token",
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    observed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return observed


def test_it_reads_the_digit_before_and_after_its_worker_was_killed(seen: dict[str, Any]) -> None:
    assert seen["answers"] == [[3]] * 5
    assert seen["without_worker"] == 503
    assert seen["after_kill"] == [[3]] * 5
    assert seen["replaced"]
    assert seen["left_over"] == 0


def test_it_describes_its_stages(seen: dict[str, Any]) -> None:
    stages = seen["pipeline"]["stages"]
    assert [stage["name"] for stage in stages] == ["decode", "classify", "label"]
    assert seen["pipeline"]["requests"]["completed"] == 10
    assert seen["pipeline"]["requests"]["refused"] >= 1


def test_another_sla_takes_effect_without_a_restart(seen: dict[str, Any]) -> None:
    assert seen["sla"] == "95% of requests within 250 ms"
    assert seen["same_worker"]
