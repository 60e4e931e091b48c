import pytest

from deployments.control.cpu_quota import CpuQuota, cpu_quota

V2 = "0::{path}\n"
V1 = "9:name=systemd:/\n4:memory:/a\n2:cpu,cpuacct:{path}\n"


@pytest.mark.parametrize(
    ("membership", "quotas_us", "cores", "folder"),
    [
        # Of nested groups, the tightest counts.
        (V2.format(path="/pod/1"), {"": "max", "pod": 200_000, "pod/1": 25_000}, 0.25, "pod/1"),
        (V2.format(path="/"), {"": "max"}, None, ""),
        (V1.format(path="/pod/1"), {"pod": -1, "pod/1": 150_000}, 1.5, "cpu,cpuacct/pod/1"),
        # In a container, the path may be the host's.
        (V1.format(path="/kubepods/pod1/c2"), {"": 50_000}, 0.5, "cpu,cpuacct/"),
    ],
)
def test_the_tightest_quota_of_a_process_is_found(tmp_path, membership, quotas_us, cores, folder):
    for group, quota_us in quotas_us.items():
        if membership.startswith("0:"):
            path, files = tmp_path / group, {"max": f"{quota_us} 100000\n"}
        else:
            path = tmp_path / "cpu,cpuacct" / group
            files = {"cfs_quota_us": f"{quota_us}\n", "cfs_period_us": "100000\n"}
        path.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (path / f"cpu.{name}").write_text(content)
    (tmp_path / "membership").write_text(membership)
    expected = None if cores is None else CpuQuota(cores, tmp_path / folder / "cpu.stat")
    assert cpu_quota(tmp_path, tmp_path / "membership") == expected
    assert cpu_quota(tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("content", "throttled"),
    [
        ("nr_periods 70\nnr_throttled 12\nthrottled_time 5\n", 12),
        *(("", 0), ("none here", 0), ("nr_throttled many", 0)),
    ],
)
def test_what_cannot_be_read_counts_as_not_used_up(tmp_path, content, throttled):
    (tmp_path / "cpu.stat").write_text(content)
    assert CpuQuota(1.0, tmp_path / "cpu.stat").throttled() == throttled
    assert CpuQuota(1.0, tmp_path / "none").throttled() == 0
