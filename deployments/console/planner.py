"""Answer what-if questions in a child process: one at a time, and the newest wins."""

import asyncio
import itertools
import logging
from typing import Any

from deployments.control.child_process import ChildProcess
from deployments.errors import ChildError, PlannerBusyError

logger = logging.getLogger("sojourn.console")

#: The longest that a question may take; most take a tenth of a second.
TIME_LIMIT_S = 15.0
#: How long the process may take to start besides, on a busy machine.
START_LIMIT_S = 45.0
#: Questions beyond this are refused at once.
MAX_WAITING = 8


class PlannerProcess:
    """A child process that plans: started by the first page or question.

    Its imports take up to a second, more on a busy machine, so it starts before the first question
    and runs while a page is open.

    Parameters
    ----------
    module : str
        The module that it runs.
    """

    def __init__(self, module: str) -> None:
        self._child = ChildProcess(module, "the planner")
        self._lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._newest = 0
        self._asked = 0
        self._pages = 0

    def open_page(self) -> None:
        """Start the process, if it does not run, and keep it until the page is closed."""
        self._pages += 1
        self._child.keep()
        if self._pages == 1:
            try:
                self._child.start()
            except ChildError as error:
                # The first question tries again, and says it.
                logger.warning("%s", error)

    def close_page(self) -> None:
        """Note that a page was closed; without pages and questions the process ends soon."""
        self._pages -= 1
        if not self._pages:
            self._child.let_go()

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
                start_s = 0.0 if self._child.has_answered else START_LIMIT_S
                return await self._child.ask(message, TIME_LIMIT_S + start_s)
        except ChildError as error:
            raise ChildError(f"{error}; ask again, or for something simpler") from error
        finally:
            self._asked -= 1

    def close(self) -> None:
        """End the process, if it runs; the next question starts another."""
        self._child.close()
