"""What surrounds a service under test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.resilience.settings import CLOCK, DISK, movable_clock, set_clock, small_disk

CODE = """
import time
for _ in range(2):
    print(time.time(), time.time_ns() / 1e9, time.monotonic(), flush=True)
    input()
"""


def test_the_clock_of_a_running_process_is_moved_and_the_monotonic_one_is_not() -> None:
    with movable_clock() as environment:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        before = [float(word) for word in process.stdout.readline().split()]
        set_clock(Path(environment[CLOCK]), 3600.0)
        process.stdin.write("\n")
        process.stdin.flush()
        after = [float(word) for word in process.stdout.readline().split()]
        process.communicate("\n")
    passed = [later - earlier for earlier, later in zip(before, after, strict=True)]
    assert passed == [
        pytest.approx(3600, abs=5),
        pytest.approx(3600, abs=5),
        pytest.approx(0, abs=5),
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_small_disk_is_a_disk_of_its_own_and_goes_away() -> None:
    try:
        with small_disk() as environment:
            disk = Path(environment[DISK])
            assert disk.is_mount()
    except SystemExit as error:
        pytest.skip(str(error))
    assert not disk.exists()
