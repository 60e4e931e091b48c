"""The benchmark for a machine with a GPU and little else."""

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.gpu import NEEDS, line_error, main

#: What such a machine has, and what belongs to that.
GIVEN = {
    *("torch", "numpy", "safetensors", "pydantic", "pydantic_core", "annotated-types"),
    *("typing-inspection", "typing_extensions", "setuptools", "sojourn"),
    # Used where they happen to be installed.
    *("charset-normalizer", "watchfiles", "tqdm", "requests", "fsspec", "sympy", "mpmath"),
    "colorama",
}


def test_a_line_is_recognized() -> None:
    assert line_error(np.array([3.0, 5.0, 7.0, 9.0])) < 1e-9
    assert line_error(np.array([1.0, 2.0, 4.0, 8.0])) > 0.1


def test_needs_are_pinned() -> None:
    lines = CliRunner().invoke(main, ["--needs"]).output.split()
    assert [line.partition("==")[0].lower() for line in lines] == sorted(map(str.lower, NEEDS))


def test_what_the_machine_has_is_not_needed(tmp_path):
    has = tmp_path / "has.txt"
    has.write_text("LLVMlite==0.48.0\nprometheus-client==0.20\nnumba==0.66\nscipy==1.17.0\n")
    lines = CliRunner().invoke(main, ["--needs", "--has", str(has)]).output.split()
    needed = {line.partition("==")[0] for line in lines}
    assert needed == set(NEEDS) - {"llvmlite", "prometheus_client", "numba", "scipy"}


@pytest.mark.slow
def test_it_needs_no_other_packages_and_no_ray() -> None:
    script = """
import json, sys
import benchmarks.gpu, benchmarks.peers.device_server, sojourn.commands.store
import policy.response_time.tandem_kernel
from importlib.metadata import packages_distributions
known = packages_distributions()
tops = {name.partition(".")[0] for name in sys.modules}
packages = {package for top in tops for package in known.get(top, ())}
print(json.dumps(["ray" not in tops, sorted(packages)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    without_ray, loaded = json.loads(done.stdout)
    assert without_ray
    assert set(loaded) - GIVEN <= set(NEEDS)
