"""Child processes that answer, and those that do not."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments.control.child_process import IDLE_S, ChildProcess
from deployments.control.cpu_quota import CpuQuota
from deployments.errors import ChildError
from policy.errors import InfeasibleError
from tests.support.virtual_asyncio import VirtualTimeLoop
from tests.support.waiting import has_ended, until

BEGIN = """
import os, sys, time
from deployments.control.child import answer_questions
from policy.errors import InfeasibleError
def answer(message):
"""
END = "\nanswer_questions(answer)\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the source file of a module that a child process can run as ``answer``."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # Cached bytecode is told from a source of the same length by the second; tests are quicker.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return tmp_path / "answer.py"


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    """Return a child process that runs the module."""
    child = ChildProcess("answer")
    yield child
    child.close()


async def test_one_process_answers_one_question_after_the_other(
    module: Path, child: ChildProcess
) -> None:
    module.write_text(f"{BEGIN}  return {{'twice': 2 * message['x'], 'pid': os.getpid()}}{END}")
    answers = await asyncio.gather(*(child.ask({"x": x}) for x in (3, 4, 5)))
    assert [answer["twice"] for answer in answers] == [6, 8, 10]
    assert len({answer["pid"] for answer in answers}) == 1


@pytest.mark.parametrize(
    ("source", "limit_s", "message"),
    [
        ("raise MemoryError('no memory')", 60, "the process ended: MemoryError: no memory"),
        (f"{BEGIN}  os.kill(os.getpid(), 9){END}", 60, "the process ended: -9"),
        (
            f"{BEGIN}  return 1 / 0{END}",
            60,
            "the process ended: ZeroDivisionError",
        ),
        (f"{BEGIN}  print('{{'){END}", 60, "wrote no JSON"),
        (f"{BEGIN}  time.sleep(60){END}", 0.2, "longer than 0.2 s"),
    ],
)
async def test_a_process_that_fails_may_do_better_next_time(
    module: Path, child: ChildProcess, source: str, limit_s: float, message: str
) -> None:
    module.write_text(source)
    with pytest.raises(ChildError, match=message):
        await child.ask({}, limit_s)
    module.write_text(f"{BEGIN}  return message{END}")
    assert await child.ask({"x": 3}) == {"x": 3}


async def test_an_error_that_the_process_reports_is_final(
    module: Path, child: ChildProcess
) -> None:
    module.write_text(f"{BEGIN}  raise InfeasibleError('no policy'){END}")
    for _ in range(2):
        with pytest.raises(InfeasibleError, match="no policy"):
            await child.ask({})


async def test_a_process_that_died_between_two_questions_is_started_again(
    module: Path, child: ChildProcess
) -> None:
    module.write_text(f"{BEGIN}  return {{'pid': os.getpid()}}{END}")
    before = (await child.ask({}))["pid"]
    assert child.has_answered
    os.kill(before, signal.SIGKILL)
    await until(lambda: has_ended(psutil.Process(before)))
    assert (await child.ask({}))["pid"] != before


async def test_a_cancelled_question_ends_the_process(module: Path, child: ChildProcess) -> None:
    pid = module.with_suffix(".pid")
    module.write_text(
        f"{BEGIN}\n  open({str(pid)!r}, 'w').write(str(os.getpid()))\n  time.sleep(60){END}"
    )
    asking = asyncio.create_task(child.ask({}))
    await until(lambda: pid.exists() and pid.read_text() != "")
    process = psutil.Process(int(pid.read_text()))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert has_ended(process)
    assert not child.has_answered


class Running:
    """Stands in for a process that has started."""

    stdin = stdout = None

    def __init__(self) -> None:
        self.ended = False

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        self.ended = True

    def wait(self) -> None:
        assert self.ended


def test_an_idle_process_ends_unless_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[Running] = []

    def popen(command: list[str], **options: Any) -> Running:
        assert command[1:] == ["-m", "deployments.control.child", "the.module"]
        children.append(Running())
        return children[-1]

    monkeypatch.setattr("subprocess.Popen", popen)

    async def test() -> None:
        child = ChildProcess("the.module")
        await asyncio.sleep(10 * IDLE_S)
        assert children == []
        child.start()
        await asyncio.sleep(IDLE_S - 1)
        child.start()
        assert len(children) == 1
        assert not children[0].ended
        await asyncio.sleep(2)
        assert children[0].ended
        child.keep()
        child.start()
        await asyncio.sleep(10 * IDLE_S)
        assert not children[1].ended
        child.let_go()
        await asyncio.sleep(IDLE_S + 1)
        assert children[1].ended
        assert len(children) == 2

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(test())


class CountedQuota(CpuQuota):
    """Counts how often it is asked; used up from the second time on, if at all."""

    asked = 0
    used_up = True

    def throttled(self) -> int:
        type(self).asked += 1
        return int(self.used_up and self.asked > 1)


def child_with_quota(*, used_up: bool) -> tuple[ChildProcess, type[CountedQuota]]:
    """Return a child with half a core, and the class of its quota, which counts."""
    quota = type("Quota", (CountedQuota,), {"asked": 0, "used_up": used_up})
    return ChildProcess("answer", quota=quota(0.5, Path("none"))), quota


#: Computes for 0.2 s of CPU time, and tells how long that took.
COMPUTE = f"""{BEGIN}
  began = time.monotonic()
  before = time.process_time()
  while time.process_time() < before + 0.2: pass
  return {{"took": time.monotonic() - began}}{END}"""


@pytest.mark.slow
async def test_a_process_gets_a_part_of_a_quota_that_is_used_up(module: Path) -> None:
    module.write_text(COMPUTE)
    child, quota = child_with_quota(used_up=True)
    with closing(child):
        for _ in range(2):
            quota.asked = 0
            answer = await child.ask({})
            # The first 0.1 s are its own, and the rest takes a second: it has a tenth of a core.
            assert answer["took"] >= 0.6


async def test_a_process_is_not_paused_while_the_quota_suffices(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []
    send_signal = subprocess.Popen.send_signal

    def noted(process: subprocess.Popen[bytes], number: int) -> None:
        pauses.extend([number] if number == signal.SIGSTOP else [])
        send_signal(process, number)

    monkeypatch.setattr(subprocess.Popen, "send_signal", noted)
    module.write_text(f"{BEGIN}  time.sleep(0.3); return {{}}{END}")
    child, quota = child_with_quota(used_up=False)
    with closing(child):
        assert await child.ask({}) == {}
    assert quota.asked > 1
    assert pauses == []


@pytest.mark.slow
async def test_pauses_do_not_count_towards_the_time_limit(module: Path) -> None:
    module.write_text(f"{BEGIN}  time.sleep(2.5); return {{}}{END}")
    child, _ = child_with_quota(used_up=True)
    with closing(child):
        assert await child.ask({}, time_limit_s=2.0) == {}


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
