"""Solving a policy table beside the traffic: in a process of its own, once per machine.

A table takes a second or more of a core. In the replica's process it would take the interpreter
from the requests, so a child process solves it, at low priority; the replica serves on with the
policy it has. Tables are kept in a folder of this user's, named by what they were solved for, so
the next replica of the same model and SLA finds its own ready.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from policy.batching_policy import BatchingPolicy
from policy.profile import Profile
from policy.table import (
    Objective,
    PolicyTable,
    ServiceLevelObjective,
    Weights,
    solve_table,
    source_hash,
)
from sojourn.errors import InfeasibleError, InvalidInputError, SojournError

_OBJECTIVES = {"Weights": Weights, "ServiceLevelObjective": ServiceLevelObjective}
_NICENESS = 10


def work_conserving_table(profile: Profile, objective: Objective) -> PolicyTable:
    """Give the table that starts whenever the device is free: right until a better one is solved.

    Raises
    ------
    InfeasibleError
        The objective asks for an answer in less time than the shortest batch takes.
    """
    shortest_ms = float(profile.latency_ms[0])
    if isinstance(objective, ServiceLevelObjective) and objective.response_time_ms < shortest_ms:
        raise InfeasibleError(
            f"sla: {objective.response_time_ms:g} ms, the share of the response time that is left "
            f"for the replica, is less than a batch of one takes ({shortest_ms:g} ms)"
        )
    policy = BatchingPolicy.from_control_limit(1, profile.best_batch_size)
    return PolicyTable((profile.capacity_per_s,), (policy, policy), source_hash(profile, objective))


async def solve_aside(profile: Profile, objective: Objective) -> PolicyTable:
    """Give the table of `profile` and `objective`: the one that is kept, or a newly solved one.

    Raises
    ------
    InvalidInputError, InfeasibleError
        As `policy.table.solve_table`.
    """
    path = _folder() / f"{source_hash(profile, objective)}.json"
    with contextlib.suppress(InvalidInputError):
        return PolicyTable.load(path, profile, objective)
    order = {
        "profile": profile.to_dict(),
        "objective": {"kind": type(objective).__name__, **asdict(objective)},
        "path": str(path),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "deployments.solver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    talk = asyncio.create_task(asyncio.to_thread(process.communicate, json.dumps(order).encode()))
    try:
        output, errors = await asyncio.shield(talk)
    except asyncio.CancelledError:
        process.kill()
        await talk
        raise
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise InfeasibleError(f"the policy table was not solved: {lines[-1]}")
    answer: dict[str, Any] = json.loads(output)
    if "error" in answer:
        raise InfeasibleError(answer["error"])
    return PolicyTable.load(path, profile, objective)


def _folder() -> Path:
    """Make, and give, this user's folder of tables; another version solves its own."""
    version = importlib.metadata.version("sojourn")
    folder = Path(tempfile.gettempdir()) / f"sojourn-tables-{os.getuid()}-{version}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def main() -> None:
    """Solve the table ordered on standard input, keep it, and say so on standard output."""
    os.nice(_NICENESS)
    order = json.load(sys.stdin)
    kind = order["objective"].pop("kind")
    answer = {}
    try:
        profile = Profile.from_dict(order["profile"])
        table = solve_table(profile, _OBJECTIVES[kind](**order["objective"]))
    except SojournError as error:
        answer["error"] = str(error)
    else:
        path = Path(order["path"])
        # Whole or not at all: another replica may be reading.
        part = path.with_suffix(f".{os.getpid()}")
        table.save(part)
        part.replace(path)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
