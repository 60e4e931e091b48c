"""The CPU quota of this process's control group, as containers have it, and when it is used up.

The kernel stops all processes of a group that has used up its quota, until the next period. So a
worker that computes stops the replica, whatever its priority.
"""

from dataclasses import dataclass
from pathlib import Path

_ROOT, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class CpuQuota:
    """The tightest quota of the groups that this process is in, with the kernel's ``cpu.stat``."""

    cores: float
    statistics: Path

    def throttled(self) -> int:
        """Return in how many periods the quota was used up, so far; 0 if that is not known."""
        try:
            lines = dict(line.split() for line in self.statistics.read_text().splitlines())
            return int(lines["nr_throttled"])
        except (OSError, ValueError, KeyError):
            return 0


def cpu_quota(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> CpuQuota | None:
    """Return the quota; None if there is none, or no control groups of the second version."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    # In a container, the path may be one that only the host sees: then its own is the root.
    groups = [root / path.lstrip("/") for path in paths]
    folders = [folder for group in groups for folder in (group, *group.parents)]
    found = [
        CpuQuota(cores, folder / "cpu.stat")
        for folder in folders
        if folder.is_relative_to(root) and (cores := _cores(folder)) is not None
    ]
    return min(found, key=lambda quota: quota.cores, default=None)


def _cores(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
