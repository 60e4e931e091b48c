"""Energy meters: NVML for NVIDIA GPUs, and RAPL for Intel and AMD processors.

A meter counts upwards; the energy of an interval is the difference of two readings. It counts
everything the device does, so measure on an otherwise idle machine.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pynvml

from deployments.models.base import EnergyMeter, Model
from policy.errors import InfeasibleError

POWERCAP = Path("/sys/class/powercap")


def best_meter(device: str, model: Model | None = None) -> tuple[EnergyMeter | None, str]:
    """Return the energy meter of ``cpu`` or ``cuda`` and its source, or None and why.

    A model that has its own is asked first.
    """
    try:
        meter = None if model is None else model.energy_meter()
        meter = meter or (NvmlMeter() if device == "cuda" else RaplMeter())
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
        except pynvml.NVMLError as error:
            raise InfeasibleError(f"NVML: {error}") from error
        self.read_mj()

    @property
    def is_shared(self) -> bool:
        try:
            return len(pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)) > 1
        except pynvml.NVMLError:
            return True

    def read_mj(self) -> float:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except pynvml.NVMLError as error:
            raise InfeasibleError(f"NVML: {error}") from error


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
    is_shared = True

    def __init__(self, root: Path = POWERCAP) -> None:
        # A package includes its cores. psys and the mmio zones would count packages twice.
        self._zones = [
            zone
            for zone in sorted(root.glob("intel-rapl:*"))
            if _read_text(zone / "name").startswith(("package", "dram"))
        ]
        if not self._zones:
            raise InfeasibleError(f"RAPL: this machine has no energy counters under {root}")
        self._last_uj = self._read_zones_uj()
        self._total_uj = 0

    def read_mj(self) -> float:
        """Return the energy since construction, in mJ."""
        now_uj = self._read_zones_uj()
        for zone, last_uj, zone_uj in zip(self._zones, self._last_uj, now_uj, strict=True):
            # The kernel's counter restarts at 0 after its maximum.
            range_uj = int(_read_text(zone / "max_energy_range_uj"))
            self._total_uj += (zone_uj - last_uj) % range_uj
        self._last_uj = now_uj
        return self._total_uj / 1e3

    def _read_zones_uj(self) -> list[int]:
        return [int(_read_text(zone / "energy_uj")) for zone in self._zones]


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        hint = "; only root may read it" if isinstance(error, PermissionError) else ""
        raise InfeasibleError(f"RAPL: {path}: {error.strerror}{hint}") from error
