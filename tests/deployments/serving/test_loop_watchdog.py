import subprocess
import sys

import pytest

from tests.support.waiting import LIMIT_S

SCRIPT = """
import asyncio, ctypes, time
from deployments.serving.loop_watchdog import end_if_loop_hangs

def sleep_without_the_lock():
    time.sleep(600)

def sleep_with_the_lock():
    ctypes.PyDLL(None).sleep(600)

async def main():
    watching = asyncio.create_task(end_if_loop_hangs(lambda: 1.0, 0.2, lambda: {hung}))
    await asyncio.to_thread(time.sleep, 2.0)  # work that the loop only waits for
    print("alive after twice the limit", flush=True)
    {then}

asyncio.run(main())
"""


def run(then, hung=None):
    script = SCRIPT.replace("{then}", then).replace("{hung}", repr(hung))
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("function", ["sleep_without_the_lock", "sleep_with_the_lock"])
def test_a_loop_that_hangs_ends_its_process_with_a_traceback(function):
    ended = run(f"{function}()")
    assert ended.returncode == 1
    assert "alive after twice the limit" in ended.stdout
    assert f"in {function}" in ended.stderr


@pytest.mark.slow
def test_a_loop_that_a_batch_hangs_ends_its_process_with_one_line():
    ended = run("sleep_without_the_lock()", "a batch of 4 has hung for 20 s in my_model.py:27")
    assert ended.returncode == 1
    assert ended.stderr == "a batch of 4 has hung for 20 s in my_model.py:27\n"


@pytest.mark.slow
def test_a_watchdog_that_was_stopped_ends_nothing():
    ended = run("watching.cancel(); await asyncio.sleep(0); time.sleep(2.0)")
    assert (ended.returncode, ended.stderr) == (0, "")
