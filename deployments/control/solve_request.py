"""What is solved for a replica: the question, the answer, and the files that hold the answer."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from policy.errors import InvalidInputError
from policy.load_lateness import LoadLatenessCurve
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.table import PolicyTable, source_hash

_OBJECTIVES = {"Weights": Weights, "ServiceLevelObjective": ServiceLevelObjective}


@dataclass(frozen=True)
class SolveRequest:
    """What a replica needs solved: a policy table and a load-lateness curve.

    Attributes
    ----------
    profile : Profile
        The device's profile.
    objective : Objective
        The objective of the policy table.
    sla : ServiceLevelObjective
        The SLA of the curve: what the way to the replica and back leaves of the client's SLA.
    waiting_room : int
        Requests that may wait.
    """

    profile: Profile
    objective: Objective
    sla: ServiceLevelObjective
    waiting_room: int

    @property
    def search_sizes(self) -> bool:
        """Whether the table has batch sizes of its own: one for weights has not."""
        return isinstance(self.objective, ServiceLevelObjective)

    @property
    def table_name(self) -> str:
        """Name of the file that holds the table."""
        return f"{source_hash(self.profile, self.objective)}.json"

    @property
    def curve_name(self) -> str:
        """Name of the file that holds the curve."""
        source: list[Any] = [
            *(self.profile.latency_ms.tolist(), asdict(self.sla)),
            *(self.waiting_room, self.search_sizes),
        ]
        content = self.profile.to_dict()
        source += [
            {key: content[key]} for key in ("latency_quantiles", "front", "cpus") if key in content
        ]
        return f"curve-{hashlib.sha256(json.dumps(source).encode()).hexdigest()}.json"

    def same_as(self, other: "SolveRequest") -> bool:
        """Return whether both requests have the same result."""
        names = (self.table_name, self.curve_name)
        return names == (other.table_name, other.curve_name)

    def to_dict(self) -> dict[str, Any]:
        """Return the request in JSON's types."""
        return {
            "profile": self.profile.to_dict(),
            "objective": {"kind": type(self.objective).__name__, **asdict(self.objective)},
            "sla": asdict(self.sla),
            "waiting_room": self.waiting_room,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "SolveRequest":
        """Return the request that `to_dict` wrote."""
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
    """The solution of a `SolveRequest`.

    Attributes
    ----------
    table : PolicyTable
        The policy for each arrival rate.
    curve : LoadLatenessCurve or None
        None if no arrival rate meets the SLA.
    """

    table: PolicyTable
    curve: LoadLatenessCurve | None


class SolveCache:
    """Solutions in a folder, a file for each table and each curve.

    Parameters
    ----------
    folder : Path
        An existing folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, request: SolveRequest) -> SolveResult:
        """Return the stored solution of `request`.

        Raises
        ------
        InvalidInputError
            A file is missing or damaged.
        """
        table = self.load_table(request)
        try:
            content = json.loads((self.folder / request.curve_name).read_text())
            curve = content and LoadLatenessCurve(
                content["sla_rate_per_s"],
                tuple(content["late_shares"]),
                content.get("batch_size_limit"),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInputError(f"load-lateness curve: not stored ({error!r})") from error
        return SolveResult(table, curve)

    def load_table(self, request: SolveRequest) -> PolicyTable:
        """Return the stored table of `request`.

        Raises
        ------
        InvalidInputError
            The file is missing or damaged.
        """
        path = self.folder / request.table_name
        return PolicyTable.load(path, request.profile, request.objective)

    def has_table(self, request: SolveRequest) -> bool:
        """Return whether the table of `request` is stored."""
        with contextlib.suppress(InvalidInputError):
            self.load_table(request)
            return True
        return False

    def store_table(self, request: SolveRequest, table: PolicyTable) -> None:
        """Store the table of `request`."""
        self._write(request.table_name, json.dumps(table.to_dict()))

    def store_curve(self, request: SolveRequest, curve: LoadLatenessCurve | None) -> None:
        """Store the curve of `request`, or that there is none."""
        self._write(request.curve_name, json.dumps(curve and asdict(curve)))

    def _write(self, name: str, text: str) -> None:
        """Write a file atomically: another replica may be reading it."""
        path = self.folder / name
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(text)
        temporary.replace(path)


def cache_folder() -> Path:
    """Create and return this user's cache folder; every version of Sojourn has its own."""
    version = importlib.metadata.version("sojourn")
    folder = Path(tempfile.gettempdir()) / f"sojourn-tables-{os.getuid()}-{version}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
