"""One thread per CPU, in the libraries that are loaded and in those to come."""

import json
import os
import subprocess
import sys

import pytest

from deployments.threads import threads_for

_REPORT = """
import json, os, numpy, threadpoolctl
from deployments.threads import limit_threads
limit_threads(1.5)
print(json.dumps([
    [pool["num_threads"] for pool in threadpoolctl.threadpool_info()], os.environ["OMP_NUM_THREADS"]
]))
"""


@pytest.mark.parametrize(("cpus", "threads"), [(0.1, 1), (1, 1), (1.5, 2), (4, 4)])
def test_threads_are_the_cpus_rounded_up(cpus, threads):
    assert threads_for(cpus) == threads


def test_loaded_libraries_and_the_environment_follow():
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    output = subprocess.run(
        [sys.executable, "-c", _REPORT], env=environment, capture_output=True, check=True, text=True
    ).stdout
    pools, variable = json.loads(output)
    assert pools
    assert set(pools) == {2}
    assert variable == "2"
