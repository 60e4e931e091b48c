"""Keep a replica's policy table and load-lateness curve solved for what is asked for."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from deployments.config.service_config import SLAConfig
from deployments.control.sla_capacity import SlaCapacity
from deployments.control.solve_request import SolveRequest, SolveResult
from deployments.control.table_solver import solve_in_child, solver_process
from policy.errors import InfeasibleError, InvalidInputError, SojournError
from policy.table import PolicyTable

logger = logging.getLogger("sojourn.policy")

#: Pause before the first retry of a solver that died; each failure in a row doubles it, up to this.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
#: How long a solver may take; each failure in a row doubles it, too: on a busy machine, a process
#: of the lowest priority takes many times what it takes alone.
FIRST_LIMIT_S, LONGEST_LIMIT_S = 120.0, 1800.0


class BackgroundSolver:
    """Solve the latest request beside the traffic; keep the last solution until then.

    A solver that dies or hangs is started again, after pauses that double. One that finds no
    solution would find none again, so nothing more is tried until something else is asked for.

    Parameters
    ----------
    sla : SLAConfig
        The SLA that the client sees.
    on_solved : callable
        Called on the event loop after `table` and `sla_capacity` have changed.
    sleep : callable
        Waits for a number of seconds.

    Attributes
    ----------
    table : PolicyTable or None
        The last table that was solved.
    sla_capacity : SlaCapacity
        The last curve that was solved; none if the latest request has no solution.
    error : str or None
        Why the latest request has no solution.
    failures : int
        How often a solver died, hung or found no solution.
    """

    def __init__(
        self,
        sla: SLAConfig,
        on_solved: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.table: PolicyTable | None = None
        self.sla_capacity = SlaCapacity(sla)
        self.error: str | None = None
        self.failures = 0
        self._on_solved = on_solved
        self._sleep = sleep
        self._child = solver_process()
        self._last_error: str | None = None
        self._next_try_s: float | None = None
        self._latest: tuple[SolveRequest, SLAConfig] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def in_progress(self) -> bool:
        """Whether a solution is still to come, the first one included."""
        if self.error is not None:
            return False
        return self.table is None or (self._task is not None and not self._task.done())

    def solve(self, request: SolveRequest, sla: SLAConfig) -> None:
        """Start to solve `request`, in place of an unfinished one.

        Nothing is started if the result would be the same as that of the latest request, unless
        that failed.
        """
        failed = self._last_error is not None
        self.error = self._last_error = self._next_try_s = None
        if self._latest is not None and not failed:
            latest, latest_sla = self._latest
            if request.same_as(latest) and sla == latest_sla:
                return
        self._latest = (request, sla)
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._solve(request, sla))

    def reduce_capacity(self, factor: float) -> None:
        """Scale the rate of the curve in force down by `factor`, until a new one is solved.

        On a busy machine that takes long: the solver has the lowest priority.
        """
        curve = self.sla_capacity.curve
        if curve is not None and factor < 1:
            reduced = replace(curve, sla_rate_per_s=factor * curve.sla_rate_per_s)
            self.sla_capacity = replace(self.sla_capacity, curve=reduced)

    def report(self) -> dict[str, Any]:
        """Return how the solver fares, for JSON; null after a success, or if nothing is planned."""
        next_try_s = self._next_try_s
        return {
            "failures": self.failures,
            "last_error": self._last_error,
            "next_try_s": next_try_s and max(0.0, next_try_s - time.monotonic()),
        }

    async def _solve(self, request: SolveRequest, sla: SLAConfig) -> None:
        try:
            result = await self._solve_until_answered(request)
        except SojournError as error:
            self.failures += 1
            self.error = self._last_error = str(error)
            self.sla_capacity = SlaCapacity(sla)
            logger.error("solving failed, the policy in force stays: %s", error)
            return
        self._last_error = None
        self.table = result.table
        self.sla_capacity = SlaCapacity(sla, result.curve, out_of_reach=result.curve is None)
        self._on_solved()

    async def _solve_until_answered(self, request: SolveRequest) -> SolveResult:
        """Return the solution of `request`; start as many solvers as it takes."""
        pause_s, limit_s = FIRST_PAUSE_S, FIRST_LIMIT_S
        while True:
            try:
                return await solve_in_child(self._child, request, limit_s)
            except (InfeasibleError, InvalidInputError):
                raise
            except Exception as error:
                self.failures += 1
                self._last_error = str(error) or type(error).__name__
                logger.error("the solver failed and is tried again in %g s: %s", pause_s, error)
            self._next_try_s = time.monotonic() + pause_s
            await self._sleep(pause_s)
            self._next_try_s = None
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            limit_s = min(2 * limit_s, LONGEST_LIMIT_S)

    async def close(self) -> None:
        """Cancel an unfinished request, and end the solver."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._child.close()
