"""Solving policy table and service curve beside the traffic: in a process of its own, once.

A table takes a second or more of a core. In the replica's process it would take the interpreter
from the requests, so a child process solves it, at low priority; the replica serves on with the
policy it has. What is solved is kept in a folder of this user's, named by what it was solved for,
so the next replica of the same model and SLA on this machine finds it ready.
"""

import asyncio
import contextlib
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError, SojournError
from policy.load_lateness import LoadLatenessCurve, solve_load_lateness_curve
from policy.profile import Profile
from policy.table import (
    Objective,
    PolicyTable,
    ServiceLevelObjective,
    Weights,
    solve_table,
    source_hash,
)

_OBJECTIVES = {"Weights": Weights, "ServiceLevelObjective": ServiceLevelObjective}
_NICENESS = 10


def work_conserving_table(profile: Profile, objective: Objective) -> PolicyTable:
    """Give the table that starts whenever the device is free: right until a better one is solved.

    Raises
    ------
    InfeasibleError
        The objective asks for an result in less time than the shortest batch takes.
    """
    shortest_ms = float(profile.latency_ms[0])
    if isinstance(objective, ServiceLevelObjective) and objective.response_time_ms < shortest_ms:
        raise InfeasibleError(
            f"sla: {objective.response_time_ms:g} ms, the share of the response time that is left "
            f"for the replica, is less than a batch of one takes ({shortest_ms:g} ms)"
        )
    policy = BatchingPolicy.from_control_limit(1, profile.best_batch_size)
    return PolicyTable((profile.capacity_per_s,), (policy, policy), source_hash(profile, objective))


@dataclass(frozen=True)
class SolveRequest:
    """What is to be solved for a replica.

    Attributes
    ----------
    profile : Profile
    objective : Objective
        Of the table.
    sla : ServiceLevelObjective
        Of the curve: what the way to the replica and back leaves of the SLA.
    waiting_room : int
        Requests that may wait.
    """

    profile: Profile
    objective: Objective
    sla: ServiceLevelObjective
    waiting_room: int

    @property
    def table_name(self) -> str:
        """The table's file."""
        return f"{source_hash(self.profile, self.objective)}.json"

    @property
    def curve_name(self) -> str:
        """The curve's file."""
        source = [self.profile.latency_ms.tolist(), asdict(self.sla), self.waiting_room]
        return f"curve-{hashlib.sha256(json.dumps(source).encode()).hexdigest()}.json"

    def same_as(self, other: "SolveRequest") -> bool:
        """Whether it has the same result."""
        names = (self.table_name, self.curve_name)
        return names == (other.table_name, other.curve_name)

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        return {
            "profile": self.profile.to_dict(),
            "objective": {"kind": type(self.objective).__name__, **asdict(self.objective)},
            "sla": asdict(self.sla),
            "waiting_room": self.waiting_room,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "SolveRequest":
        """Read what `to_dict` gave."""
        objective = dict(content["objective"])
        kind = _OBJECTIVES[objective.pop("kind")]
        return cls(
            Profile.from_dict(content["profile"]),
            kind(**objective),
            ServiceLevelObjective(**content["sla"]),
            content["waiting_room"],
        )


@dataclass(frozen=True)
class SolveResult:
    """What was solved.

    Attributes
    ----------
    table : PolicyTable
    curve : LoadLatenessCurve or None
        None where no arrival rate meets the SLA.
    """

    table: PolicyTable
    curve: LoadLatenessCurve | None


async def solve_in_subprocess(request: SolveRequest) -> SolveResult:
    """Give table and curve: those that are kept, or newly solved ones.

    Raises
    ------
    InvalidInputError, InfeasibleError
        As `policy.table.solve_table`.
    """
    with contextlib.suppress(InvalidInputError):
        return _kept(request)
    process = subprocess.Popen(
        [sys.executable, "-m", "deployments.control.table_solver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    order = json.dumps({**request.to_dict(), "folder": str(_folder())}).encode()
    talk = asyncio.create_task(asyncio.to_thread(process.communicate, order))
    try:
        output, errors = await asyncio.shield(talk)
    except asyncio.CancelledError:
        process.kill()
        await talk
        raise
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise InfeasibleError(f"the policy table was not solved: {lines[-1]}")
    result: dict[str, Any] = json.loads(output)
    if "error" in result:
        raise InfeasibleError(result["error"])
    return _kept(request)


def _kept(request: SolveRequest) -> SolveResult:
    folder = _folder()
    table = PolicyTable.load(folder / request.table_name, request.profile, request.objective)
    try:
        content = json.loads((folder / request.curve_name).read_text())
        curve = content and LoadLatenessCurve(
            content["sla_rate_per_s"], tuple(content["late_shares"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"service curve: not kept ({error!r})") from error
    return SolveResult(table, curve)


def _folder() -> Path:
    """Make, and give, this user's folder of what is solved; another version solves its own."""
    version = importlib.metadata.version("sojourn")
    folder = Path(tempfile.gettempdir()) / f"sojourn-tables-{os.getuid()}-{version}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _write(path: Path, text: str) -> None:
    """Write whole or not at all: another replica may be reading."""
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def _solve(request: SolveRequest, folder: Path) -> None:
    try:
        curve = solve_load_lateness_curve(request.profile, request.sla, request.waiting_room)
    except InfeasibleError:
        curve = None
    _write(folder / request.curve_name, json.dumps(curve and asdict(curve)))
    path = folder / request.table_name
    try:
        PolicyTable.load(path, request.profile, request.objective)
    except InvalidInputError:
        table = solve_table(request.profile, request.objective)
        _write(path, json.dumps(table.to_dict()))


def main() -> None:
    """Solve what is ordered on standard input, keep it, and say so on standard output."""
    os.nice(_NICENESS)
    order = json.load(sys.stdin)
    result = {}
    try:
        _solve(SolveRequest.from_dict(order), Path(order["folder"]))
    except SojournError as error:
        result["error"] = str(error)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
