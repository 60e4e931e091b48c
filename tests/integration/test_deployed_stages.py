"""A stage in Ray replicas of its own, on a real Ray: answers, a killed replica, and its number.

`deployed_stage_calls` runs in its own process and prints what it observed.
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
        [sys.executable, "-m", "tests.integration.deployed_stage_calls"],
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


def test_it_reads_the_digit_and_tells_the_times_of_its_stages(seen: dict[str, Any]) -> None:
    assert seen["label"] == [3]
    assert seen["times"] == ["decode", "classify", "label"]


def test_a_killed_replica_costs_no_answer(seen: dict[str, Any]) -> None:
    """What it held is run once more, by the other."""
    assert set(seen["while_killed"]) == {"200"}


def test_the_stage_follows_the_load_and_the_pipeline_does_not(seen: dict[str, Any]) -> None:
    assert seen["most_workers"] == 3
    assert seen["fronts"] == 1
    # Until the third replica runs, what cannot be answered in time is not.
    busy = seen["busy"]
    assert set(busy) <= {"200", "503", "504"}
    assert busy["200"] > 0.5 * sum(busy.values())
    assert set(seen["after"]) == {"200"}
    assert seen["left_over"] == 0
