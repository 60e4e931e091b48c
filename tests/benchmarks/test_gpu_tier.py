"""The measurements of the tier of GPU memory, on a device of host memory."""

import pytest

from benchmarks.gpu_tier import Device, gpu_tier
from tests.support import emulated_device


@pytest.mark.slow
def test_all_is_measured_and_no_byte_is_wrong_after_kills():
    found = gpu_tier((1, 3), Device(emulated_device.MODULE, "EmulatedClient", ""))
    assert found["fault"] is None
    assert found["outlives_holder"]
    assert len(found["by_bytes"]) == 2
    for size, row in found["by_bytes"].items():
        assert int(size) > 0
        assert row["source"] == "device"
        assert row["attach_ms"] > 0
        assert row["copy_gb_per_s"] > 0
        assert row["second_process_attach_ms"] > 0
    killed = found["holder_killed"]
    assert killed["held_right"]
    assert killed["attached_right"]
    assert killed["holder_starts"] == 2


@pytest.mark.slow
def test_a_device_that_cannot_be_used_is_reported(monkeypatch):
    monkeypatch.setenv(emulated_device.KIND_VARIABLE, "broken")
    found = gpu_tier((1,), Device(emulated_device.MODULE, "EmulatedClient", ""))
    assert found["by_bytes"] == {}
    assert "broken" in found["fault"]
