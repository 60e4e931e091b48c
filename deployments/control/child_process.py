"""Compute in a child process, so that the requests keep the interpreter.

A child has a low priority. In a container with a CPU quota that does not help: what the child takes
of the quota, the requests lose. So once the quota has been used up, the child takes turns with
pauses, and gets a part of the quota only.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO, Any

from deployments.control.cpu_quota import CpuQuota, cpu_quota
from deployments.errors import ChildError
from policy.errors import InfeasibleError

#: A child that nobody has asked for this long ends.
IDLE_S = 60.0
#: What a child may take of a quota that has been used up, and how long a turn and a pause take.
QUOTA_SHARE, _TURN_S = 0.2, 0.1


class ChildProcess:
    """A child process that answers one question at a time.

    Its imports take half a second of a core, so it stays for the questions to come, until it is
    idle for `IDLE_S`. It ends with this process.

    Parameters
    ----------
    module : str
        Run by `deployments.control.child`.
    what : str
        What errors call it.
    quota : CpuQuota, optional
        By default, that of this process, if it has one.

    Attributes
    ----------
    has_answered : bool
        Whether the process that runs has answered before, so that it does not have to start.
    """

    def __init__(self, module: str, what: str = "the process", quota: CpuQuota | None = None):
        self.has_answered = False
        self._module, self._what, self._quota = module, what, quota
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._kept = False
        self._lock = asyncio.Lock()

    def start(self) -> None:
        """Start the process, if it does not run.

        Raises
        ------
        ChildError
            It does not start.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        try:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115
            # From this thread: the process ends with the thread that started it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "deployments.control.child", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except OSError as error:
            raise ChildError(f"{self._what} did not start: {error}") from error
        self._end_when_idle()

    def keep(self) -> None:
        """Let the process run even if nobody asks."""
        self._kept = True
        self._end_when_idle()

    def let_go(self) -> None:
        """End what `keep` began."""
        self._kept = False
        self._end_when_idle()

    async def ask(
        self, message: dict[str, Any], time_limit_s: float | None = None
    ) -> dict[str, Any]:
        """Return the answer to a question; start the process if it does not run.

        Cancelling kills the process.

        Parameters
        ----------
        message : dict
            In JSON's types.
        time_limit_s : float, optional
            The process is killed after this; with pauses, after so much longer.

        Returns
        -------
        dict
            In JSON's types.

        Raises
        ------
        InfeasibleError
            The answer has an ``error``; the process would give it again.
        ChildError
            The process did not start, died, took too long, or wrote something else. Another may do
            better.
        """
        async with self._lock:
            self.start()
            self._cancel_idle()
            output = await self._exchange(json.dumps(message).encode() + b"\n", time_limit_s)
            try:
                answer: dict[str, Any] = json.loads(output)
            except ValueError as error:
                self.close()
                raise ChildError(f"{self._what} wrote no JSON: {error}") from error
            self.has_answered = True
            self._end_when_idle()
        if "error" in answer:
            raise InfeasibleError(answer["error"])
        return answer

    async def _exchange(self, line: bytes, time_limit_s: float | None) -> bytes:
        """Write a line to the process, and return the line that it writes."""
        assert self._process is not None
        reply = asyncio.create_task(asyncio.to_thread(_write_and_read, self._process, line))
        pacing: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(time_limit_s) as limit:
                quota = self._quota or cpu_quota()
                if quota is not None:
                    pacing = asyncio.create_task(_pace(self._process, quota, limit))
                answer = await asyncio.shield(reply)
        except TimeoutError:
            await self._give_up(reply)
            raise ChildError(f"{self._what} took longer than {time_limit_s:g} s") from None
        except asyncio.CancelledError:
            await self._give_up(reply)
            raise
        finally:
            if pacing is not None:
                pacing.cancel()
        if not answer:
            raise ChildError(self._last_words())
        return answer

    async def _give_up(self, reply: asyncio.Task[bytes]) -> None:
        """End the process, and wait until nothing reads from it."""
        if self._process is not None:
            self._process.kill()
        await reply
        self.close()

    def _last_words(self) -> str:
        """Return why the process has ended, in one line, and leave it."""
        process, errors = self._process, self._errors
        if process is None or errors is None:
            return f"{self._what} was ended"
        status = process.wait()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        self.close()
        return f"{self._what} ended: {lines[-1] if lines else status}"

    def _cancel_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()

    def _end_when_idle(self) -> None:
        self._cancel_idle()
        if not self._kept:
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle)

    def _end_idle(self) -> None:
        """End the process, if it runs, without a wait for it: freeing its memory takes 10 ms."""
        if not self._lock.locked():  # it answers a question, and is idle after that
            threading.Thread(target=self._kill(), daemon=True).start()

    def close(self) -> None:
        """End the process, if it runs; the next question starts another."""
        self._cancel_idle()
        self._kill()()

    def _kill(self) -> Callable[[], None]:
        """Kill the process, if it runs; return what waits for its end and closes its files."""
        self.has_answered = False
        process, self._process = self._process, None
        errors, self._errors = self._errors, None
        if process is not None:
            process.kill()
        return partial(_reap, process, errors)


def _reap(process: subprocess.Popen[bytes] | None, errors: IO[bytes] | None) -> None:
    """Wait for the end of a process, and close its files."""
    if process is not None:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # of what it has not read
                    pipe.close()
    if errors is not None:
        errors.close()


def _write_and_read(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Write a line to a process, and return the one that it writes; empty if it ends. Blocks."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
        return process.stdout.readline()
    except (OSError, ValueError):  # it ended, or was closed, before it had read the line
        return b""


async def _pace(process: subprocess.Popen[bytes], quota: CpuQuota, limit: asyncio.Timeout) -> None:
    """Pause the process again and again, once the quota has been used up; until cancelled."""
    share = QUOTA_SHARE * quota.cores
    if share >= 1:
        return
    throttled = quota.throttled()
    while quota.throttled() == throttled or not _gives_way(process.pid):
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


def _gives_way(child: int) -> bool:
    """Return whether a child has come as far as to end with this process, even while paused."""
    try:
        return os.getpriority(os.PRIO_PROCESS, child) > os.getpriority(os.PRIO_PROCESS, 0)
    except ProcessLookupError:
        return False
