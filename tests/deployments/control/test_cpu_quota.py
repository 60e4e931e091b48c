import pytest

from deployments.control.cpu_quota import CpuQuota, cpu_quota


@pytest.mark.parametrize(
    ("membership", "quotas_us", "cores", "folder"),
    [
        # Of nested groups, the tightest counts.
        ("0::/pod/1\n", {"": "max", "pod": 200_000, "pod/1": 25_000}, 0.25, "pod/1"),
        ("0::/\n", {"": "max"}, None, ""),
        # In a container, the path may be the host's.
        ("2:cpu:/a\n0::/kubepods/pod1/c2\n", {"": 50_000}, 0.5, ""),
        ("2:cpu:/a\n", {"": 50_000}, None, ""),
    ],
)
def test_the_tightest_quota_of_a_process_is_found(tmp_path, membership, quotas_us, cores, folder):
    for group, quota_us in quotas_us.items():
        (tmp_path / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / group / "cpu.max").write_text(f"{quota_us} 100000\n")
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
