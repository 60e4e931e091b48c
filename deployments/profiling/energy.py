"""Energy meters: NVML for NVIDIA GPUs, and RAPL for Intel and AMD processors.

A meter counts upwards; the energy of an interval is the difference of two readings. It counts
everything the device does, so measure on an otherwise idle machine.
"""

import os
import sys
from pathlib import Path
from typing import Any, Protocol

import pynvml

from policy.errors import InfeasibleError

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter(Protocol):
    """A counter of the energy that a device uses; `source` describes it, for people."""

    @property
    def source(self) -> str: ...

    def read_mj(self) -> float:
        """Return the energy since a fixed instant, in mJ. It never decreases."""


def best_meter(device: str) -> tuple[EnergyMeter | None, str]:
    """Return the energy meter of ``cpu`` or ``cuda`` and its source, or None and why."""
    try:
        meter: EnergyMeter = NvmlMeter() if device == "cuda" else RaplMeter()
    except InfeasibleError as error:
        return None, str(error)
    return meter, meter.source


class NvmlMeter:
    """Energy meter of the first GPU of this process, of Volta or newer; else `InfeasibleError`."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
            self._handle = _gpu_handle()
            self.source = f"NVML energy counter of {pynvml.nvmlDeviceGetName(self._handle)}"
            self.read_mj()
        except pynvml.NVMLError as error:
            raise InfeasibleError(f"NVML: {error}") from error

    def read_mj(self) -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))


def _gpu_handle() -> Any:
    """Return NVML's handle of CUDA device 0, from torch or else from CUDA_VISIBLE_DEVICES."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first and not first.isdigit():
        return pynvml.nvmlDeviceGetHandleByUUID(first)
    return pynvml.nvmlDeviceGetHandleByIndex(int(first or 0))


class RaplMeter:
    """Energy meter of all processor packages, and of their memory if it has separate counters.

    Raises `InfeasibleError` if the machine has no such counters, as most virtual machines, or they
    are not readable.
    """

    source = "RAPL counters of the whole machine's processors"

    def __init__(self, root: Path = POWERCAP) -> None:
        # A package includes its cores. psys and the mmio zones would count packages twice.
        zones = [
            zone
            for zone in sorted(root.glob("intel-rapl:*"))
            if _read_text(zone / "name").startswith(("package", "dram"))
        ]
        if not zones:
            raise InfeasibleError(f"RAPL: this machine has no energy counters under {root}")
        self._zones = [_RaplZone(zone) for zone in zones]

    def read_mj(self) -> float:
        return sum(zone.read_uj() for zone in self._zones) / 1e3


class _RaplZone:
    """One counter in µJ, unwrapped: the kernel's counter restarts at 0 after its maximum."""

    def __init__(self, zone: Path) -> None:
        self._counter = zone / "energy_uj"
        self._range_uj = int(_read_text(zone / "max_energy_range_uj"))
        self._last_uj = int(_read_text(self._counter))
        self._total_uj = 0

    def read_uj(self) -> int:
        now_uj = int(_read_text(self._counter))
        self._total_uj += (now_uj - self._last_uj) % self._range_uj
        self._last_uj = now_uj
        return self._total_uj


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        hint = "; only root may read it" if isinstance(error, PermissionError) else ""
        raise InfeasibleError(f"RAPL: {path}: {error.strerror}{hint}") from error
