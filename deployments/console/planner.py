"""Answer what-if questions in a child process: one at a time, and the newest wins."""

import asyncio
import itertools
import json
import logging
import subprocess
import sys
from typing import Any

from deployments.errors import ChildError, PlannerBusyError

logger = logging.getLogger("sojourn.console")

#: The longest that a question may take; most take a tenth of a second.
TIME_LIMIT_S = 15.0
#: How long the process may take to start besides, on a busy machine.
START_LIMIT_S = 45.0
#: The process ends when nobody has asked for this long.
IDLE_S = 60.0
#: Questions beyond this are refused at once.
MAX_WAITING = 8


class PlannerProcess:
    """The child process `deployments.console.planner_process`: started by the first question.

    To start it takes seconds of imports, so it stays for the questions to come. It ends with its
    standard input, and so with this process.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._newest = 0
        self._asked = 0

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a question, in JSON's types.

        While one question is answered, only the newest of the others waits for its turn.

        Raises
        ------
        PlannerBusyError
            A newer question took its place, or too many wait.
        ChildError
            The process died, or took too long.
        """
        if self._asked > MAX_WAITING:
            raise PlannerBusyError("the planner is busy; ask again")
        self._newest = number = next(self._numbers)
        self._asked += 1
        try:
            async with self._lock:
                if number != self._newest:
                    raise PlannerBusyError("a newer question took the place of this one")
                return await self._ask(json.dumps(message).encode() + b"\n")
        finally:
            self._asked -= 1

    async def _ask(self, line: bytes) -> dict[str, Any]:
        if self._idle is not None:
            self._idle.cancel()
        limit_s = TIME_LIMIT_S + (START_LIMIT_S if self._process is None else 0.0)
        reply = asyncio.create_task(asyncio.to_thread(self._exchange, line))
        try:
            async with asyncio.timeout(limit_s):
                answer = await asyncio.shield(reply)
        except TimeoutError:
            await self._give_up(reply)
            raise ChildError(
                f"the planner took longer than {limit_s:g} s; ask for something simpler"
            ) from None
        except asyncio.CancelledError:
            await self._give_up(reply)
            raise
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.close)
        content: dict[str, Any] = json.loads(answer)
        return content

    def _exchange(self, line: bytes) -> bytes:
        """Write a line to the process, and return the line that it writes. This blocks."""
        if self._process is not None and self._process.poll() is not None:
            _end(self._process)
            self._process = None
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "deployments.console.planner_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError as error:
            raise ChildError(f"the planner died: {error}") from error
        if not answer:
            self._process = None
            _end(process)
            raise ChildError("the planner died; ask again")
        return answer

    async def _give_up(self, reply: asyncio.Task[bytes]) -> None:
        """Kill the process, and wait until nothing reads from it."""
        if self._process is not None:
            self._process.kill()
        await asyncio.gather(reply, return_exceptions=True)

    def close(self) -> None:
        """End the process, if it runs; the next question starts another."""
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Reap a process that has ended, or is ending."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                logger.debug("the planner's pipe was broken")
    process.wait()
