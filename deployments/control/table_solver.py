"""Solve a replica's policy table and load-lateness curve in a child process.

A solve takes a second or more of a core. In the replica's process it would compete with the
requests for the interpreter, so a child process runs it at low priority
(`deployments.control.table_solver_process`), and the replica keeps its current policy meanwhile.
Results are stored on disk (`deployments.control.solve_cache`): the next replica with the same model
and SLA on this machine loads them.
"""

import contextlib
import logging

from deployments.control.child_process import ChildProcess
from deployments.control.solve_cache import SolveCache, cache_folder
from deployments.control.solve_request import SolveRequest, SolveResult
from deployments.errors import ChildError
from policy.batch_sizes import least_control_limit
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import Objective, ServiceLevelObjective
from policy.profile import Profile
from policy.table import PolicyTable, source_hash

logger = logging.getLogger("sojourn.policy")

# The rates of the first table, by the load, and the front's utilization by its policies.
_LOADS = tuple(step / 16 for step in range(1, 17))
_FRONT_LOAD = 0.85


def work_conserving_table(profile: Profile, objective: Objective) -> PolicyTable:
    """Return the table that starts a batch whenever the device is free.

    It is in force until a better one is solved. Behind a front of its own, it waits for as many as
    leave the front some time, at rates at which smaller batches would not.

    Raises
    ------
    InfeasibleError
        The objective leaves less time than a batch of one takes.
    """
    shortest_ms = float(profile.latency_ms[0])
    if isinstance(objective, ServiceLevelObjective) and objective.response_time_ms < shortest_ms:
        raise InfeasibleError(
            f"sla: the response time leaves {objective.response_time_ms:g} ms for batching, less "
            f"than a batch of one takes ({shortest_ms:g} ms)"
        )
    best, capacity_per_s = profile.best_batch_size, profile.capacity_per_s
    limits = [least_control_limit(profile, capacity_per_s * load / _FRONT_LOAD) for load in _LOADS]
    policies = [BatchingPolicy.from_control_limit(limit, best) for limit in (*limits, limits[-1])]
    rates = tuple(capacity_per_s * load for load in _LOADS)
    return PolicyTable(rates, tuple(policies), source_hash(profile, objective))


def solver_process() -> ChildProcess:
    """Return a child process that solves, for `solve_in_child`; it starts when it is asked."""
    return ChildProcess("deployments.control.table_solver_process")


async def solve_in_child(
    child: ChildProcess, request: SolveRequest, time_limit_s: float
) -> SolveResult:
    """Return the solution of `request`, from the cache or newly solved.

    Cancelling the call kills the child process.

    Parameters
    ----------
    child : ChildProcess
        A `solver_process`.
    request : SolveRequest
    time_limit_s : float
        How long the child process may take.

    Raises
    ------
    InfeasibleError
        It cannot be solved; the message says why.
    ChildError
        The child process failed. It may succeed next time.
    """
    cache = SolveCache(cache_folder())
    with contextlib.suppress(InvalidInputError):
        return cache.load(request)
    message = {**request.to_dict(), "folder": str(cache.folder)}
    answer = await child.ask(message, time_limit_s)
    if "not_stored" in answer:
        logger.warning("the solved table is not kept for other replicas: %s", answer["not_stored"])
    try:
        return SolveResult.from_dict(answer)
    except (KeyError, TypeError, InvalidInputError) as error:
        raise ChildError(f"the solution was not understood: {error!r}") from error
