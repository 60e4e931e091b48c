"""What is solved for a replica: the question and the answer."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

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
    admit_within_ms : float
        A request is refused if it will not be done within this time; infinity: none is.
    """

    profile: Profile
    objective: Objective
    sla: ServiceLevelObjective
    waiting_room: int
    admit_within_ms: float = math.inf

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
            *(self.waiting_room, self.admit_within_ms, self.search_sizes),
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
            "admit_within_ms": self.admit_within_ms if self.admit_within_ms < math.inf else None,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "SolveRequest":
        """Return the request that `to_dict` wrote."""
        objective = dict(content["objective"])
        kind = _OBJECTIVES[objective.pop("kind")]
        admit_within_ms = content["admit_within_ms"]
        return cls(
            Profile.from_dict(content["profile"]),
            kind(**objective),
            ServiceLevelObjective(**content["sla"]),
            content["waiting_room"],
            math.inf if admit_within_ms is None else admit_within_ms,
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

    def to_dict(self) -> dict[str, Any]:
        """Return the solution in JSON's types."""
        return {"table": self.table.to_dict(), "curve": self.curve and asdict(self.curve)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "SolveResult":
        """Return the solution that `to_dict` wrote."""
        return cls(PolicyTable.from_dict(content["table"]), curve_from_dict(content["curve"]))


def curve_from_dict(content: Mapping[str, Any] | None) -> LoadLatenessCurve | None:
    """Return the curve whose fields are `content`; None for none."""
    if content is None:
        return None
    return LoadLatenessCurve(
        content["sla_rate_per_s"],
        tuple(content["late_shares"]),
        content["batch_size_limit"],
        tuple(content["overload_levels"]),
    )
