"""Pipelines on a real Ray: answers, killed workers, an SLA changed live, and a stage that scales.

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


@pytest.fixture
def processes(seen: dict[str, Any]) -> dict[str, Any]:
    """Return what was seen of the pipeline whose stages compute in processes of its replica."""
    found: dict[str, Any] = seen["processes"]
    return found


@pytest.fixture
def deployed(seen: dict[str, Any]) -> dict[str, Any]:
    """Return what was seen of the pipeline with a stage in Ray replicas of its own."""
    found: dict[str, Any] = seen["deployed"]
    return found


def test_it_reads_the_digit_before_and_after_its_worker_was_killed(
    processes: dict[str, Any],
) -> None:
    assert processes["answers"] == [[3]] * 5
    assert processes["without_worker"] == 503
    assert processes["after_kill"] == [[3]] * 5
    assert processes["replaced"]
    assert processes["left_over"] == 0


def test_it_describes_its_stages(processes: dict[str, Any]) -> None:
    stages = processes["pipeline"]["stages"]
    assert [stage["name"] for stage in stages] == ["decode", "classify", "label"]
    # Ten requests, and the example at the start.
    assert processes["pipeline"]["requests"]["completed"] == 11
    assert processes["pipeline"]["requests"]["refused"] >= 1


def test_another_sla_takes_effect_without_a_restart(processes: dict[str, Any]) -> None:
    assert processes["sla"] == "95% of requests within 250 ms"
    assert processes["same_worker"]


def test_a_deployed_stage_reads_the_digit(deployed: dict[str, Any]) -> None:
    assert deployed["label"] == [3]


def test_a_killed_replica_costs_no_answer(deployed: dict[str, Any]) -> None:
    """What it held is run once more, by the other."""
    assert set(deployed["while_killed"]) == {"200"}


def test_the_stage_follows_the_load_and_the_pipeline_does_not(deployed: dict[str, Any]) -> None:
    assert deployed["most_workers"] == 3
    assert deployed["fronts"] == 1
    # Until the third replica runs, what cannot be answered in time is not.
    busy = deployed["busy"]
    assert set(busy) <= {"200", "503", "504"}
    assert busy["200"] > 0.5 * sum(busy.values())
    assert set(deployed["after"]) == {"200"}
    assert deployed["left_over"] == 0
