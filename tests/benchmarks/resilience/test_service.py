"""The service under test, and what it needs of its machine."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks.resilience import disk
from benchmarks.resilience.load import Target
from benchmarks.resilience.service import Service, everything_ended

_PARENT = "import os, time; pid = os.fork(); pid and print(pid, flush=True); time.sleep(60)"


def start_an_orphan() -> int:
    """Return the process id of the child of a killed process."""
    child = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE)
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    child.stdout.close()
    child.kill()
    child.wait()
    return pid


def test_everything_that_was_started_is_ended() -> None:
    with everything_ended():
        orphan = start_an_orphan()
        assert psutil.pid_exists(orphan)
    assert not psutil.pid_exists(orphan)


def test_a_deputy_is_not_taken_for_a_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = {2: 1, 3: 2, 5: 4, 6: 5}
    found: list[Any] = [
        SimpleNamespace(pid=pid, ppid=lambda parent=parent: parent)
        for pid, parent in parents.items()
    ]
    monkeypatch.setattr(Service, "processes", lambda self, is_it: found)
    service = Service(Target("h", 1, "m", 0.5, 99), "", psutil.Process(), {})
    assert [one.pid for one in service.supervisors()] == [2, 5]


def test_only_root_can_have_a_small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="root"), disk.on_a_small_disk({}):
        pass
