import subprocess
import sys

import pytest

from loadtests.run import Settings, _stop, _wait


def process(code):
    return subprocess.Popen([sys.executable, "-S", "-c", code])


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_all_end_when_one_does_not_end_well(end):
    forever = "import time\nwhile True: time.sleep(60)"
    master, worker, other = (process(code) for code in (forever, end, forever))
    _wait([master, worker, other])
    assert worker.returncode
    _stop([master, worker, other])
    assert master.returncode
    assert other.returncode


def test_the_wait_ends_when_all_have_ended_well():
    both = [process(""), process("")]
    _wait(both)
    assert [one.returncode for one in both] == [0, 0]


def test_all_workers_together_have_no_more_connections_than_allowed():
    for workers, each in ((1, 10), (3, 3), (10, 1)):
        assert Settings("m", 10, 1.0, 1.0, 0, workers=workers).connections_per_worker == each
