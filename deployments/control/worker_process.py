"""Compute in a worker process, so that the requests keep the interpreter.

A worker has a low priority. In a container with a CPU quota that does not help: the requests lose
what the worker takes of the quota. So once the quota has been used up, the worker takes turns with
pauses, and gets a part of the quota only.
"""

import asyncio
import os
import pickle
import signal
import subprocess
import threading
from contextlib import suppress
from typing import Any

from autoscaler import worker
from autoscaler.worker import WorkerError
from deployments.control.cpu_quota import CpuQuota, cpu_quota

#: A worker ends after this time without a question.
IDLE_S = 300.0
#: The share that a worker may take of a quota that has been used up, and the time of a turn and a
#: pause together.
QUOTA_SHARE, _TURN_S = 0.2, 0.1
#: The time between the end of a worker's output and its own end.
_END_S = 1.0

_Process = subprocess.Popen[bytes]


class WorkerProcess:
    """A process that answers one question at a time (`autoscaler.worker`).

    It starts at the first question, and after a failure at the next one. Its imports take half a
    second of a core, so it stays for the questions to come, until it is idle for `IDLE_S`.
    """

    def __init__(self, name: str = "the worker", quota: CpuQuota | None = None):
        self._name, self._quota = name, quota
        self._process: _Process | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._lock = asyncio.Lock()

    async def ask(self, function: str, *arguments: Any, time_limit_s: float, **options: Any) -> Any:
        """Return the result of a function, ``module:name``. Cancelling kills the process.

        It is also killed after the time limit, which pauses extend. A `SojournError` that the
        function raised is raised again, and would be again. `WorkerError`: the process did not
        start, died, took too long or failed; another may do better.
        """
        async with self._lock:
            process = self._started()
            if self._idle is not None:
                self._idle.cancel()
            question = worker.question(function, *arguments, **options)
            answer = await self._exchange(process, question, time_limit_s)
            if answer is None:
                self.close()
                raise WorkerError(f"{self._name} ended with status {process.wait()}")
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_if_idle)
        return worker.result(answer)

    def _started(self) -> _Process:
        """Return the process; start it if it does not run."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            try:
                # From this thread: the process ends with the thread that started it.
                self._process = subprocess.Popen(
                    worker.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            except OSError as error:
                raise WorkerError(f"{self._name} did not start: {error}") from error
        return self._process

    async def _exchange(
        self, process: _Process, question: bytes, time_limit_s: float
    ) -> tuple[str, Any] | None:
        """Return the answer of the process; None if it ends."""
        reply = asyncio.create_task(asyncio.to_thread(_write_and_read, process, question))
        pacing: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(time_limit_s) as limit:
                quota = self._quota or cpu_quota()
                if quota is not None:
                    pacing = asyncio.create_task(_pace(process, quota, limit))
                return await asyncio.shield(reply)
        except (TimeoutError, asyncio.CancelledError) as error:
            self.close()
            await reply
            if isinstance(error, TimeoutError):
                raise WorkerError(f"{self._name} took longer than {time_limit_s:g} s") from None
            raise
        finally:
            if pacing is not None:
                pacing.cancel()

    def _end_if_idle(self) -> None:
        if not self._lock.locked():
            self.close()

    def close(self) -> None:
        """End the process, if it runs; the next question starts another."""
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # The kernel takes 10 ms to free its memory.
            threading.Thread(target=_reap, args=(process,), daemon=True).start()


def _reap(process: _Process) -> None:
    """Wait for the end of a process, and close its pipes."""
    with suppress(OSError), process:  # the pipe may have a question that was not read
        process.wait()


def _write_and_read(process: _Process, question: bytes) -> tuple[str, Any] | None:
    """Write a question to a process, and return its answer; None if it ends. Blocks."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(question)
        process.stdin.flush()
        answer: tuple[str, Any] = pickle.load(process.stdout)
        return answer
    except (OSError, ValueError, EOFError, pickle.UnpicklingError):
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        return None


async def _pace(process: _Process, quota: CpuQuota, limit: asyncio.Timeout) -> None:
    """Pause the process again and again, once the quota has been used up; until cancelled."""
    share = QUOTA_SHARE * quota.cores
    if share >= 1:
        return
    throttled = quota.throttled()
    while quota.throttled() == throttled or not _ends_with_parent(process.pid):
        await asyncio.sleep(_TURN_S)
    when_s, now_s = limit.when(), asyncio.get_running_loop().time()
    if when_s is not None:
        limit.reschedule(now_s + (when_s - now_s) / share)
    try:
        while True:
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep((1 - share) * _TURN_S)
            process.send_signal(signal.SIGCONT)
            await asyncio.sleep(share * _TURN_S)
    finally:
        process.send_signal(signal.SIGCONT)


def _ends_with_parent(pid: int) -> bool:
    """Return whether a worker has come so far as to end with this process, even while paused."""
    try:
        return os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
    except ProcessLookupError:
        return False
