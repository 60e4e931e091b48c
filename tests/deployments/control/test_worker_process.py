import asyncio
import itertools
import os
import subprocess
import sys
from contextlib import closing
from unittest import mock

import psutil
import pytest

from autoscaler.worker import WorkerError, question
from deployments.control.worker_process import WorkerProcess
from policy.errors import InfeasibleError
from tests.support.waiting import LIMIT_S, has_ended, until

BEGIN = """
import os, sys, time
from policy.errors import InfeasibleError
def answer(x=None):
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return the source file of a module whose function ``answer`` a worker can call."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    # Cached bytecode is told from a source of the same length by the second; tests are quicker.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return tmp_path / "answer.py"


@pytest.fixture
def worker():
    worker = WorkerProcess()
    yield worker
    worker.close()


async def ask(worker: WorkerProcess, *arguments, time_limit_s=LIMIT_S):
    return await worker.ask("answer:answer", *arguments, time_limit_s=time_limit_s)


async def test_one_process_answers_one_question_after_the_other(module, worker):
    module.write_text(
        f"{BEGIN}  if x == 9: raise InfeasibleError(f'no policy in {{os.getpid()}}')\n"
        "  print('not an answer'); return 2 * x, os.getpid()\n"
    )
    answers = await asyncio.gather(*(ask(worker, x) for x in (3, 4, 5)))
    assert [twice for twice, _ in answers] == [6, 8, 10]
    (pid,) = {pid for _, pid in answers}
    with pytest.raises(InfeasibleError, match=f"no policy in {pid}"):
        await ask(worker, 9)


async def test_a_process_that_fails_may_do_better_next_time(module, worker, monkeypatch):
    monkeypatch.setattr("deployments.control.worker_process._END_S", LIMIT_S)
    failures = [
        ("raise MemoryError('no memory')", LIMIT_S, "MemoryError: no memory"),
        ("os.kill(os.getpid(), 9)", LIMIT_S, "the worker ended with status -9"),
        ("return lambda: None", LIMIT_S, "the worker ended with status 1"),
        ("time.sleep(60)", 0.2, "the worker took longer than 0.2 s"),
    ]
    bodies = "".join(f"  if x == {x}: {body}\n" for x, (body, _, _) in enumerate(failures))
    module.write_text(f"{BEGIN}{bodies}  return x\n")
    for x, (_, limit_s, message) in enumerate(failures):
        with pytest.raises(WorkerError, match=message):
            await ask(worker, x, time_limit_s=limit_s)
    assert await ask(worker, 9) == 9


async def test_a_cancelled_question_ends_the_process(module, worker):
    pid = module.with_suffix(".pid")
    module.write_text(
        f"{BEGIN}  open({str(pid)!r}, 'w').write(str(os.getpid()))\n  time.sleep(60)\n"
    )
    asking = asyncio.create_task(ask(worker))
    await until(lambda: pid.exists() and pid.read_text() != "")
    process = psutil.Process(int(pid.read_text()))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: has_ended(process))


@pytest.mark.parametrize("killed", [False, True])
async def test_an_idle_process_ends_and_one_that_ended_is_started_again(
    module, worker, monkeypatch, killed
):
    monkeypatch.setattr("deployments.control.worker_process.IDLE_S", 3600 if killed else 0.05)
    module.write_text(f"{BEGIN}  return os.getpid()\n")
    first = psutil.Process(await ask(worker))
    if killed:
        first.kill()
    await until(lambda: has_ended(first))
    assert await ask(worker) != first.pid


#: Computes for 0.2 s of CPU time, and tells how long that took.
COMPUTE = f"""{BEGIN}
  began = time.monotonic()
  before = time.process_time()
  while time.process_time() < before + 0.2: pass
  return time.monotonic() - began
"""


@pytest.mark.slow
async def test_a_process_gets_a_part_of_a_quota_that_is_used_up(module):
    module.write_text(COMPUTE)
    quota = mock.Mock(cores=0.5)
    with closing(WorkerProcess(quota=quota)) as worker:
        for _ in range(2):
            quota.throttled.side_effect = itertools.count()
            # The first 0.1 s are its own, and the rest takes a second: it has a tenth of a core.
            assert await ask(worker) >= 0.6


async def test_a_paused_process_ends_with_its_parent(module):
    module.write_text(
        f"{BEGIN}  print(os.getpid(), file=sys.stderr, flush=True)\n  os.kill(os.getpid(), 19)\n"
    )
    code = (
        "import subprocess, sys, time; from autoscaler.worker import command; "
        "worker = subprocess.Popen(command(), stdin=subprocess.PIPE); "
        f"worker.stdin.write({question('answer:answer')!r}); worker.stdin.flush(); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    worker = psutil.Process(int(parent.stderr.readline()))
    with parent:
        parent.kill()
    await until(lambda: has_ended(worker))
