"""Child processes that answer, and those that do not."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deployments.control import child_process
from deployments.control.cpu_quota import CpuQuota
from deployments.errors import ChildError
from policy.errors import InfeasibleError
from tests.support.waiting import has_ended, until

READ = "import json, os, sys, time; message = json.load(sys.stdin);"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the source file of a module that a child process can run as ``answer``."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "answer.py"


async def test_the_answer_is_what_the_process_writes(module: Path) -> None:
    module.write_text(f"{READ} json.dump({{'twice': 2 * message['x']}}, sys.stdout)")
    assert await child_process.call("answer", {"x": 3}) == {"twice": 6}


@pytest.mark.parametrize(
    ("source", "limit_s", "message"),
    [
        ("raise MemoryError('no memory')", 60, "MemoryError: no memory"),
        (f"{READ} os.kill(os.getpid(), 9)", 60, r"the process ended \(-9\)"),
        (f"{READ} print('{{')", 60, "wrote no JSON"),
        (f"{READ} time.sleep(60)", 0.2, "longer than 0.2 s"),
    ],
)
async def test_a_process_that_fails_may_do_better_next_time(
    module: Path, source: str, limit_s: float, message: str
) -> None:
    module.write_text(source)
    with pytest.raises(ChildError, match=message):
        await child_process.call("answer", {}, time_limit_s=limit_s)


async def test_an_error_that_the_process_reports_is_final(module: Path) -> None:
    module.write_text(f"{READ} json.dump({{'error': 'no policy'}}, sys.stdout)")
    with pytest.raises(InfeasibleError, match="no policy"):
        await child_process.call("answer", {})


class CountedQuota(CpuQuota):
    """Counts how often it is asked; used up from the second time on, if at all."""

    asked = 0
    used_up = True

    def throttled(self) -> int:
        type(self).asked += 1
        return int(self.used_up and self.asked > 1)


#: Computes for 0.2 s of CPU time, and tells how long that took.
COMPUTE = f"""{READ}
began = time.monotonic()
before = time.process_time()
while time.process_time() < before + 0.2: pass
json.dump({{"took": time.monotonic() - began}}, sys.stdout)"""


@pytest.mark.slow
async def test_a_process_gets_a_part_of_a_quota_that_is_used_up(module: Path) -> None:
    module.write_text(COMPUTE)
    quota = type("Quota", (CountedQuota,), {"asked": 0})(0.5, Path("none"))
    answer = await child_process.call("answer", {}, quota=quota)
    # The first 0.1 s are its own, and the rest takes a second: it has a tenth of a core.
    assert answer["took"] >= 0.6


async def test_a_process_is_not_paused_while_the_quota_suffices(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = []
    monkeypatch.setattr(subprocess.Popen, "send_signal", lambda _, number: signals.append(number))
    module.write_text(f"{READ} time.sleep(0.3); json.dump({{}}, sys.stdout)")
    quota = type("Quota", (CountedQuota,), {"asked": 0, "used_up": False})(0.5, Path("none"))
    assert await child_process.call("answer", {}, quota=quota) == {}
    assert quota.asked > 1
    assert signals == []


@pytest.mark.slow
async def test_pauses_do_not_count_towards_the_time_limit(module: Path) -> None:
    module.write_text(f"{READ} time.sleep(2.5); json.dump({{}}, sys.stdout)")
    quota = type("Quota", (CountedQuota,), {"asked": 0})(0.5, Path("none"))
    assert await child_process.call("answer", {}, time_limit_s=2.0, quota=quota) == {}


async def test_a_paused_process_ends_with_its_parent(module: Path) -> None:
    module.write_text(
        "import os, signal\nprint(os.getpid(), flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time; "
            "subprocess.Popen([sys.executable, '-m', 'deployments.control.child', 'answer']); "
            "time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(module.parent), *sys.path])},
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    with parent:
        parent.kill()
    await until(lambda: has_ended(child))
