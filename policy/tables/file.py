"""A policy table solved in advance, in a file with what it was solved for."""

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from policy.errors import InvalidInputError, file_errors
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.tables.table import PolicyTable, source_hash

_KINDS = {kind.__name__: kind for kind in (Weights, ServiceLevelObjective)}


@dataclass(frozen=True, eq=False)
class TableFile:
    """A policy table, and the profile and the objective that it was solved for."""

    profile: Profile
    objective: Objective
    table: PolicyTable

    def table_for(self, profile: Profile) -> PolicyTable | None:
        """Return the table for a profile, which may end earlier; None if it is for another."""
        largest = profile.max_batch_size
        own, other = (
            source_hash(one.up_to(largest), self.objective) for one in (self.profile, profile)
        )
        if own != other:
            return None
        policies = tuple(policy.up_to(largest) for policy in self.table.policies)
        return replace(self.table, policies=policies)

    def save(self, path: Path) -> None:
        content = {
            "profile": {**self.profile.to_dict(), "measured": {}},
            "objective": {"kind": type(self.objective).__name__, **asdict(self.objective)},
            **self.table.to_dict(),
        }
        path.write_text(json.dumps(content) + "\n")

    @classmethod
    def load(cls, path: str) -> "TableFile":
        """Read the file that `save` wrote; `InvalidInputError` if it is none."""
        with file_errors(f"policy table {path}"):
            return _load(path, Path(path).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _load(path: str, _mtime_ns: int) -> TableFile:
    try:
        content = json.loads(Path(path).read_text())
        objective = dict(content["objective"])
        kind = _KINDS[objective.pop("kind")]
        profile = Profile.from_dict(content["profile"])
        return TableFile(profile, kind(**objective), PolicyTable.from_dict(content))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(
            f"policy table {path}: not as `sojourn solve --export` writes it ({error})"
        ) from error
