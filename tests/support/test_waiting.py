"""Waits end when what they wait for has come, and not before it can have."""

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from tests.support import waiting
from tests.support.clocks.virtual_clock import VirtualClock
from tests.support.waiting import has_ended, wait_for


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """The clock of the waits, on virtual time."""
    made = VirtualClock()
    stand_in = SimpleNamespace(monotonic=made.perf_counter, sleep=made.sleep)
    monkeypatch.setattr(waiting, "time", stand_in)
    return made


def test_a_condition_is_looked_at_again_and_again_until_the_limit(clock: VirtualClock) -> None:
    assert wait_for(lambda: clock.now_s > 9, 10)
    assert 9 < clock.now_s < 10
    assert not wait_for(lambda: False, 10)
    assert 19 < clock.now_s < 20.5


def test_a_condition_that_came_true_while_the_machine_stood_still_is_seen(
    clock: VirtualClock,
) -> None:
    """The wait was over by the clock, and was given up without a look."""
    looks = iter([False, True])

    def condition() -> bool:
        clock.now_s += 100
        return next(looks)

    assert wait_for(condition, 10)


def test_a_process_has_ended_also_if_its_parent_has_asked_for_its_status() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = psutil.Process(child.pid)
    assert not has_ended(process)
    child.kill()
    assert wait_for(lambda: has_ended(process))
    child.communicate()
    assert has_ended(process)
