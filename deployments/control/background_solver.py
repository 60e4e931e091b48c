"""Keep a replica's policy table and load-lateness curve solved for what is asked for."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from deployments.config import SLAConfig
from deployments.control.sla_capacity import SlaCapacity
from deployments.control.solve_request import SolveRequest
from deployments.control.table_solver import solve_in_subprocess
from policy.errors import SojournError
from policy.table import PolicyTable

logger = logging.getLogger("sojourn.policy")


class BackgroundSolver:
    """Solve the latest request beside the traffic; keep the last solution until then.

    Parameters
    ----------
    sla : SLAConfig
        The SLA that the client sees.
    on_solved : callable
        Called on the event loop after `table` and `sla_capacity` have changed.

    Attributes
    ----------
    table : PolicyTable or None
        The last table that was solved.
    sla_capacity : SlaCapacity
        The last curve that was solved; none after a failure.
    error : str or None
        Why the latest request could not be solved.
    """

    def __init__(self, sla: SLAConfig, on_solved: Callable[[], None]) -> None:
        self.table: PolicyTable | None = None
        self.sla_capacity = SlaCapacity(sla)
        self.error: str | None = None
        self._on_solved = on_solved
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
        failed, self.error = self.error is not None, None
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

    async def _solve(self, request: SolveRequest, sla: SLAConfig) -> None:
        try:
            result = await solve_in_subprocess(request)
        except (SojournError, OSError, ValueError) as error:
            self.error = str(error)
            self.sla_capacity = SlaCapacity(sla)
            logger.error("solving failed, the policy in force stays: %s", error)
            return
        self.table = result.table
        self.sla_capacity = SlaCapacity(sla, result.curve, out_of_reach=result.curve is None)
        self._on_solved()

    async def close(self) -> None:
        """Cancel an unfinished request."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
