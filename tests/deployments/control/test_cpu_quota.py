"""The CPU quota that a container has, by both versions of control groups."""

from pathlib import Path

import pytest

from deployments.control.cpu_quota import CpuQuota, cpu_quota

V2 = "0::{path}\n"
V1 = "9:name=systemd:/\n4:memory:/a\n2:cpu,cpuacct:{path}\n"
STATISTICS = "nr_periods 70\nnr_throttled 12\nthrottled_time 5\n"


class Groups:
    """Files as the kernel shows them."""

    def __init__(self, folder: Path, membership: str, hierarchy: str) -> None:
        self.root, self.membership = folder / "cgroup", folder / "membership"
        self.hierarchy = self.root / hierarchy
        self.membership.write_text(membership)

    def add(self, path: str, **files: str) -> Path:
        group = self.hierarchy / path
        group.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (group / f"cpu.{name}").write_text(content)
        (group / "cpu.stat").write_text(STATISTICS)
        return group

    def quota(self) -> CpuQuota | None:
        return cpu_quota(self.root, self.membership)


def test_the_tightest_quota_of_nested_groups_counts(tmp_path: Path) -> None:
    groups = Groups(tmp_path, V2.format(path="/pod/container"), "")
    groups.add("", max="max 100000\n")
    groups.add("pod", max="200000 100000\n")
    container = groups.add("pod/container", max="25000 100000\n")
    quota = groups.quota()
    assert quota == CpuQuota(0.25, container / "cpu.stat")
    assert quota.throttled() == 12


def test_without_a_limit_there_is_no_quota(tmp_path: Path) -> None:
    groups = Groups(tmp_path, V2.format(path="/"), "")
    groups.add("", max="max 100000\n")
    assert groups.quota() is None
    groups.membership.unlink()
    assert groups.quota() is None


def test_the_first_version_has_files_of_its_own(tmp_path: Path) -> None:
    groups = Groups(tmp_path, V1.format(path="/docker/1"), "cpu,cpuacct")
    groups.add("docker", cfs_quota_us="-1\n", cfs_period_us="100000\n")
    mine = groups.add("docker/1", cfs_quota_us="150000\n", cfs_period_us="100000\n")
    assert groups.quota() == CpuQuota(1.5, mine / "cpu.stat")


def test_in_a_container_the_groups_path_may_be_the_hosts(tmp_path: Path) -> None:
    groups = Groups(tmp_path, V1.format(path="/kubepods/pod1/c2"), "cpu,cpuacct")
    root = groups.add("", cfs_quota_us="50000\n", cfs_period_us="100000\n")
    assert groups.quota() == CpuQuota(0.5, root / "cpu.stat")


@pytest.mark.parametrize("content", ["", "none here", "nr_throttled many"])
def test_what_cannot_be_read_counts_as_not_used_up(tmp_path: Path, content: str) -> None:
    (tmp_path / "cpu.stat").write_text(content)
    assert CpuQuota(1.0, tmp_path / "cpu.stat").throttled() == 0
    assert CpuQuota(1.0, tmp_path / "none").throttled() == 0
