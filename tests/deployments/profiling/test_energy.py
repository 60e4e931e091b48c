import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.profiling.energy import NvmlMeter, RaplMeter, best_meter
from policy.errors import InfeasibleError


def has_gpu():
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount() > 0
    except pynvml.NVMLError:
        return False


HAS_GPU = has_gpu()
RANGE_UJ = 262_143_328_850


def zone(root, folder, name, energy_uj, range_uj=RANGE_UJ):
    path = root / folder
    path.mkdir()
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return path / "energy_uj"


def test_rapl_adds_packages_and_memory_and_nothing_twice(tmp_path):
    counters = {
        name: zone(tmp_path, folder, name, 0)
        for folder, name in [
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:0:0", "core"),
            ("intel-rapl:0:1", "dram"),
            ("intel-rapl:1", "package-1"),
            ("intel-rapl:2", "psys"),
            ("intel-rapl-mmio:0", "package-0-mmio"),
        ]
    }
    (tmp_path / "intel-rapl").mkdir()  # the control type has no counter of its own
    meter = RaplMeter(tmp_path)
    for number, counter in enumerate(counters.values()):
        counter.write_text(str(1000 * 10**number))
    assert meter.read_mj() == 1 + 100 + 1000


STEPS_UJ = st.integers(0, RANGE_UJ - 1)


@settings(max_examples=15)
@given(STEPS_UJ, st.lists(STEPS_UJ, min_size=1, max_size=8))
def test_rapl_unwraps_its_counter(tmp_path_factory, start_uj, steps_uj):
    root = tmp_path_factory.mktemp("powercap")
    counter = zone(root, "intel-rapl:0", "package-0", start_uj)
    meter = RaplMeter(root)
    total_uj = 0
    for step_uj in steps_uj:
        total_uj += step_uj
        counter.write_text(str((start_uj + total_uj) % RANGE_UJ))
        assert meter.read_mj() == pytest.approx(total_uj / 1e3, rel=1e-12)


def test_counters_that_are_missing_or_cannot_be_read(tmp_path):
    with pytest.raises(InfeasibleError, match="no energy counters under"):
        RaplMeter(tmp_path)
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    counter.unlink()
    counter.mkdir()  # root can read a file of any mode, but not a folder
    with pytest.raises(InfeasibleError, match="energy_uj: Is a directory"):
        RaplMeter(tmp_path)


@pytest.mark.skipif(HAS_GPU, reason="this machine has an NVIDIA GPU")
def test_without_a_gpu_there_is_a_reason_instead_of_a_meter():
    meter, reason = best_meter("cuda")
    assert meter is None
    assert reason.startswith("NVML: ")
    assert "\n" not in reason


def test_a_gpu_that_does_not_count_its_energy_has_no_meter(monkeypatch):
    def no_counter(handle):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: f"gpu {index}")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: "Tesla P4")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", no_counter)
    with pytest.raises(InfeasibleError, match="Not Supported"):
        NvmlMeter()
