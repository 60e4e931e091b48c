"""Solve a replica's policy table and load-lateness curve while it serves.

A solve takes a second or more of a core, so a worker process runs it, and the replica keeps its
current policy meanwhile. Solutions are stored on disk (`deployments.control.solve_cache`): the next
replica with the same model and SLA on this machine loads them.
"""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from autoscaler.reports import curve_to_floats
from deployments.config.user_config import SLAConfig
from deployments.control.solve_cache import SolveCache, cache_folder
from deployments.control.worker_process import WorkerProcess
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError, SojournError
from policy.load_lateness import LoadLatenessCurve
from policy.objective import Objective, ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import ServiceModel
from policy.solvers.batch_sizes import least_control_limit
from policy.tables.power import PowerTable
from policy.tables.table import PolicyTable, source_hash

logger = logging.getLogger("sojourn.policy")

#: Pause before the first retry of a solver that died; each failure in a row doubles it, up to this.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
#: How long a solver may take: on a busy machine, at a low priority, many times what it takes alone.
LIMIT_S = 1200.0

_T = TypeVar("_T")
Solved = tuple[PolicyTable, LoadLatenessCurve | None, PowerTable | None]

# The loads whose arrival rates the first table has, and the event loop's utilization by it.
_LOADS = tuple(step / 16 for step in range(1, 17))
_EVENT_LOOP_LOAD = 0.85


@dataclass(frozen=True)
class SlaCapacity:
    """A replica's load-lateness curve, with the SLA that it was solved for.

    The two change together: a curve says nothing about another SLA. Until the curve of a changed
    SLA is solved, which takes a second or two, the fleet stays sized for the old SLA.

    `out_of_reach`: it is known that no arrival rate meets the SLA.
    """

    sla: SLAConfig
    curve: LoadLatenessCurve | None = None
    out_of_reach: bool = False

    def to_floats(self) -> dict[str, float]:
        """Return the fields that `autoscaler.reports.ReplicaReport.from_floats` reads."""
        return {
            "sla_response_time_ms": self.sla.response_time_ms,
            "sla_percentile": self.sla.percentile,
            **curve_to_floats(self.curve, out_of_reach=self.out_of_reach),
        }


@dataclass(frozen=True)
class SolveRequest:
    """The policy table of a service and its load-lateness curve to solve.

    Of the service's `sla`, the delay in the proxy is taken off. `power` is what a `PowerTable` is
    solved for, if there is a ceiling.
    """

    service: ServiceModel
    power: tuple[Profile, ServiceLevelObjective] | None = None

    @property
    def power_name(self) -> str:
        return "" if self.power is None else f"power-{source_hash(*self.power)}"

    @property
    def table_name(self) -> str:
        given = self.service.given
        name = f"table-{source_hash(self.service.profile, self.service.objective)}"
        return name + ("" if given is None else hashlib.sha256(repr(given).encode()).hexdigest())

    @property
    def curve_name(self) -> str:
        limits = self.service.limits
        source = [
            *(self.table_name, asdict(self.service.sla), limits.max_queue_rows),
            *(limits.admit_within_ms, limits.max_age_ms),
        ]
        return f"curve-{hashlib.sha256(json.dumps(source).encode()).hexdigest()}"

    def same_as(self, other: "SolveRequest") -> bool:
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("table_name", "curve_name", "power_name")
        )


def work_conserving_table(profile: Profile, objective: Objective) -> PolicyTable:
    """Return the table that starts a batch whenever the device is free.

    It is in force until a better one is solved. Behind an event loop of its own, it waits for as
    many as leave the event loop some time, at rates at which smaller batches would not.
    `InfeasibleError`: the objective leaves less time than a batch of one takes.
    """
    shortest_ms = float(profile.latency_ms[0])
    if isinstance(objective, ServiceLevelObjective) and objective.response_time_ms < shortest_ms:
        raise InfeasibleError(
            f"sla: the response time leaves {objective.response_time_ms:g} ms for batching, less "
            f"than a batch of one takes ({shortest_ms:g} ms)"
        )
    best, capacity_per_s = profile.best_batch_size, profile.capacity_per_s
    limits = [
        least_control_limit(profile, capacity_per_s * load / _EVENT_LOOP_LOAD) for load in _LOADS
    ]
    policies = [BatchingPolicy.from_control_limit(limit, best) for limit in (*limits, limits[-1])]
    rates = tuple(capacity_per_s * load for load in _LOADS)
    return PolicyTable(rates, tuple(policies))


async def solve_in_worker(worker: WorkerProcess, request: SolveRequest) -> Solved:
    """Return the solution of `request`, from the cache or newly solved.

    The curve is None if no arrival rate meets the SLA, the power table if there is no ceiling.
    Cancelling kills the worker. `InvalidInputError`, `InfeasibleError`: the table has no solution;
    the message says why. `WorkerError`: the worker failed, and may succeed next time.
    """
    cache = await asyncio.to_thread(lambda: SolveCache(cache_folder()))

    async def solved(
        name: str, read: Callable[[Any], _T], write: Callable[[_T], Any], function: str, *given: Any
    ) -> _T:
        with suppress(KeyError, TypeError, ValueError, InvalidInputError):
            return read(await asyncio.to_thread(cache.load, name))
        found: _T = await worker.ask(function, *given, time_limit_s=LIMIT_S)
        try:
            await asyncio.to_thread(cache.store, name, write(found))
        except OSError as error:
            logger.warning("what was solved is not kept for other replicas: %s", error)
        return found

    service, table, power_table = request.service, request.service.given, None
    if table is None:
        table = await solved(
            request.table_name,
            PolicyTable.from_dict,
            PolicyTable.to_dict,
            "policy.tables.solving:solve_table",
            service.profile,
            service.objective,
        )
    curve = await solved(
        request.curve_name,
        _curve_of,
        lambda curve: curve and asdict(curve),
        "policy.service_model:solve_curve",
        replace(service, given=table),
    )
    if request.power is not None:
        power_table = await solved(
            request.power_name,
            PowerTable.from_dict,
            PowerTable.to_dict,
            "policy.tables.power:solve_power_table",
            *request.power,
        )
    return table, curve, power_table


def _curve_of(fields: dict[str, Any] | None) -> LoadLatenessCurve | None:
    if fields is None:
        return None
    sequences = {name: tuple(one) for name, one in fields.items() if isinstance(one, list)}
    return LoadLatenessCurve(**{**fields, **sequences})


class PolicySolver:
    """Solve the latest request in a worker process; keep the last solution until then.

    A solver that dies or hangs is started again, after pauses that double. One that finds no
    solution would find none again, so nothing more is tried until something else is asked for.
    `on_solved` is called on the event loop after `table` and `sla_capacity` have changed.
    """

    def __init__(
        self,
        sla: SLAConfig,
        on_solved: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.table: PolicyTable | None = None
        self.power_table: PowerTable | None = None
        self.sla_capacity = SlaCapacity(sla)
        self.error: str | None = None
        self.failures = 0
        self._on_solved = on_solved
        self._sleep = sleep
        self._worker = WorkerProcess("the solver")
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
            table, curve, power_table = await self._solve_until_answered(request)
        except SojournError as error:
            self.failures += 1
            self.error = self._last_error = str(error)
            self.sla_capacity = SlaCapacity(sla)
            logger.error("solving failed, the policy in force stays: %s", error)
            return
        self._last_error = None
        self.table, self.power_table = table, power_table
        self.sla_capacity = SlaCapacity(sla, curve, out_of_reach=curve is None)
        self._on_solved()

    async def _solve_until_answered(self, request: SolveRequest) -> Solved:
        """Return the solution of `request`; start as many workers as it takes."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await solve_in_worker(self._worker, request)
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

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._worker.close()
