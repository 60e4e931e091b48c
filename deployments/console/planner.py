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
#: The process ends when no page was open and nobody has asked for this long.
IDLE_S = 60.0
#: Questions beyond this are refused at once.
MAX_WAITING = 8


class PlannerProcess:
    """A child process that plans: started by the first page or question.

    Its imports take up to a second, more on a busy machine, so it starts before the first question
    and stays for those to come. It ends with its standard input, and so with this process.

    Parameters
    ----------
    module : str
        The module that it runs. It answers each line of its standard input by one line, in JSON.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._newest = 0
        self._asked = 0
        self._pages = 0
        self._has_answered = False
        #: The event loop keeps only weak references to tasks.
        self._starting: asyncio.Task[None] | None = None

    def open_page(self) -> None:
        """Start the process, if it does not run, and keep it until the page is closed."""
        self._pages += 1
        if self._idle is not None:
            self._idle.cancel()
        if self._pages == 1:
            self._starting = asyncio.create_task(self._start())

    async def _start(self) -> None:
        try:
            async with self._lock:
                await asyncio.to_thread(self._started)
        except OSError as error:
            # The first question tries again, and says it.
            logger.warning("the planner does not start: %s", error)

    def close_page(self) -> None:
        """Note that a page was closed; without pages and questions the process ends soon."""
        self._pages -= 1
        self._end_when_idle()

    def _end_when_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if not self._pages:
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.close)

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
        limit_s = TIME_LIMIT_S + (0.0 if self._has_answered else START_LIMIT_S)
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
        self._has_answered = True
        self._end_when_idle()
        content: dict[str, Any] = json.loads(answer)
        return content

    def _exchange(self, line: bytes) -> bytes:
        """Write a line to the process, and return the line that it writes. This blocks."""
        try:
            process = self._started()
        except OSError as error:
            raise ChildError(f"the planner does not start: {error}") from error
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

    def _started(self) -> subprocess.Popen[bytes]:
        """Return the process, started if it does not run. This blocks."""
        if self._process is not None and self._process.poll() is not None:
            _end(self._process)
            self._process = None
        if self._process is None:
            self._has_answered = False
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._process

    async def _give_up(self, reply: asyncio.Task[bytes]) -> None:
        """Kill the process, and wait until nothing reads from it."""
        self._has_answered = False
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
