"""Calls between deployments on a real Ray: RAND routing.

`handle_calls` runs in its own process and prints what it observed.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.support.processes.services import ROOT

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def seen():
    done = subprocess.run(
        # On SIGTERM, Ray ends its processes.
        ["timeout", "600", sys.executable, "-m", "tests.integration.handle_calls"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_calls_spread_evenly_over_the_replicas(seen):
    """Each count is within five standard deviations of a fair draw from four replicas."""
    counts = seen["spread"]["counts"].values()
    calls = sum(counts)
    assert len(counts) == 4
    mean, deviation = calls / 4, (calls * 1 / 4 * 3 / 4) ** 0.5
    assert all(abs(count - mean) < 5 * deviation for count in counts)


def test_calls_refused_by_full_replicas_go_to_the_free_one_after_constant_delays(seen):
    """With constant delays, 2.25 tries fail on average; doubling delays would have no mean.

    3 of 4 replicas are full for the first try, and 2 of 3 for each retry, which leaves out the
    replica that just refused. A try takes what it took where no replica was full.
    """
    (free,) = set(seen["beside_full_ones"]["replicas"])
    assert free in seen["spread"]["counts"]
    call_s = seen["spread"]["median_s"]
    failed_s = 1e-3 * seen["retry_delay_ms"] + call_s
    durations_s = seen["beside_full_ones"]["durations_s"]
    failed = [(duration_s - call_s) / failed_s for duration_s in durations_s]
    assert 1 < sum(failed) / len(failed) < 5
    assert min(failed) < 1
