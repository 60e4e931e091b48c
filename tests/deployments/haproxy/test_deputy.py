"""A process that returns from a fork only if the other one is killed."""

import subprocess
import sys

import pytest

_PARENT = """
import os, signal, sys
from deployments.haproxy.deputy import Deputy

deputy = Deputy()
found = deputy.fork(1)
if found is not None:
    print(found, flush=True)
    os._exit(0)
assert deputy.alive
for number in (2, 3):
    deputy.tell(number)
{end}
"""


@pytest.mark.parametrize(
    ("end", "printed"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "3\n"),
        ("deputy.end(); deputy.end(); assert not deputy.alive", ""),
        # A signal to the group is meant for the supervisor.
        (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.killpg(0, signal.SIGTERM); "
            "os.kill(os.getpid(), signal.SIGKILL)",
            "3\n",
        ),
    ],
    ids=["killed", "ended", "group told to end"],
)
def test_only_a_killed_process_leaves_something_to_its_deputy(end: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PARENT.format(end=end)],
        capture_output=True,
        text=True,
        timeout=30,
        start_new_session=True,
    )
    assert done.stderr == ""
    assert done.stdout == printed


def test_a_deputy_that_died_is_not_told_but_forked_again() -> None:
    code = """
import os, signal
from deployments.haproxy.processes import ended
from deployments.haproxy.deputy import Deputy

deputy = Deputy()
if deputy.fork() is None:
    os.kill(deputy._pid, signal.SIGKILL)
    assert ended(deputy._pidfd, 10)
    assert not deputy.alive
    deputy.tell(1)
    deputy.end()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
