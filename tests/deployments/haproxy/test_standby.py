"""A process that returns from a fork only if the other one is killed."""

import subprocess
import sys

import pytest

_PARENT = """
import os, signal, sys
from deployments.haproxy.standby import Standby

standby = Standby()
found = standby.fork(1)
if found is not None:
    print(found, flush=True)
    os._exit(0)
assert standby.alive
for number in (2, 3):
    standby.tell(number)
{end}
"""


@pytest.mark.parametrize(
    ("end", "printed"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "3\n"),
        ("standby.end(); standby.end(); assert not standby.alive", ""),
        # A signal to the group is meant for the supervisor.
        (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.killpg(0, signal.SIGTERM); "
            "os.kill(os.getpid(), signal.SIGKILL)",
            "3\n",
        ),
    ],
    ids=["killed", "ended", "group told to end"],
)
def test_only_a_killed_process_leaves_something_to_its_standby(end: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PARENT.format(end=end)],
        capture_output=True,
        text=True,
        timeout=30,
        start_new_session=True,
    )
    assert done.stderr == ""
    assert done.stdout == printed


def test_a_standby_that_died_is_not_told_but_forked_again() -> None:
    code = """
import os, signal
from deployments.haproxy.processes import ended
from deployments.haproxy.standby import Standby

standby = Standby()
if standby.fork() is None:
    os.kill(standby._pid, signal.SIGKILL)
    assert ended(standby._pidfd, 10)
    assert not standby.alive
    standby.tell(1)
    standby.end()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
