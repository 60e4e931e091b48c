"""Solve a replica's policy table and load-lateness curve in a child process, once.

A solve takes a second or more of a core. In the replica's process it would compete with the
requests for the interpreter, so a child process runs it at low priority
(`deployments.control.table_solver_process`), and the replica keeps its current policy meanwhile.
Results are stored in a folder of this user's, named by what they were solved for: the next replica
with the same model and SLA on this machine loads them.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from typing import Any

from deployments.control.solve_request import (
    SolveCache,
    SolveRequest,
    SolveResult,
    cache_folder,
)
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import Objective, ServiceLevelObjective
from policy.profile import Profile
from policy.table import PolicyTable, source_hash


def work_conserving_table(profile: Profile, objective: Objective) -> PolicyTable:
    """Return the table that starts a batch whenever the device is free, whatever the rate.

    It is in force until a better one is solved.

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
    policy = BatchingPolicy.from_control_limit(1, profile.best_batch_size)
    return PolicyTable((profile.capacity_per_s,), (policy, policy), source_hash(profile, objective))


async def solve_in_subprocess(request: SolveRequest) -> SolveResult:
    """Return the solution of `request`, from the cache or newly solved.

    Cancelling the call kills the child process.

    Raises
    ------
    InfeasibleError
        The child process could not solve it; the message is its error.
    """
    cache = SolveCache(cache_folder())
    with contextlib.suppress(InvalidInputError):
        return cache.load(request)
    process = subprocess.Popen(
        [sys.executable, "-m", "deployments.control.table_solver_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    message = json.dumps({**request.to_dict(), "folder": str(cache.folder)}).encode()
    reply = asyncio.create_task(asyncio.to_thread(process.communicate, message))
    try:
        output, errors = await asyncio.shield(reply)
    except asyncio.CancelledError:
        process.kill()
        await reply
        raise
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise InfeasibleError(f"solving the policy table failed: {lines[-1]}")
    result: dict[str, Any] = json.loads(output)
    if "error" in result:
        raise InfeasibleError(result["error"])
    return cache.load(request)
