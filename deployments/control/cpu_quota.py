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
    """Return the quota; None if there is none, or no control groups."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        hierarchy = root / controllers
        group = hierarchy / path.lstrip("/")
        # In a container, the path may be one that only the host sees: then its own is the root.
        for folder in (group, *group.parents):
            cores = _cores(folder)
            if cores is not None:
                found.append(CpuQuota(cores, folder / "cpu.stat"))
            if folder == hierarchy:
                break
    return min(found, key=lambda quota: quota.cores, default=None)


def _cores(folder: Path) -> float | None:
    """Return the quota of one group, by the second version of control groups or the first."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
            return None if quota == "max" else int(quota) / int(period)
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        return None if quota_us < 0 else quota_us / int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return None
