"""A clock that is stepped in other processes."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.resilience.clock import HOUR_S, step, stepping_clock

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc)")

#: Prints both clocks after each line that it reads, and how long a wait of 50 ms takes.
CHILD = """
import sys, threading, time
for _ in sys.stdin:
    began_s = time.monotonic()
    threading.Event().wait(0.05)
    time.sleep(0.0)
    print(time.time(), began_s, time.monotonic() - began_s, flush=True)
"""


def test_the_time_of_day_is_stepped_and_nothing_waits_longer() -> None:
    with stepping_clock() as environment:
        shift = Path(environment["SOJOURN_CLOCK_SHIFT"])
        command = [sys.executable, "-c", CHILD]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **environment}
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            for shift_s in (0, HOUR_S, -HOUR_S):
                step(shift, shift_s)
                child.stdin.write("\n")
                child.stdin.flush()
                of_day_s, monotonic_s, waited_s = map(float, child.stdout.readline().split())
                assert of_day_s == pytest.approx(time.time() + shift_s, abs=60)
                assert monotonic_s == pytest.approx(time.monotonic(), abs=60)
                assert 0.05 <= waited_s < 60
            child.stdin.close()
