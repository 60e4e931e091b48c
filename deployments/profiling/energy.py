"""Energy meters: NVML for NVIDIA GPUs, RAPL for Intel and AMD processors.

A meter counts upwards; the energy of a span is the difference of two readings. It counts all that
its device does: an idle machine makes a clean measurement.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pynvml

from policy.errors import InfeasibleError

POWERCAP = Path("/sys/class/powercap")
POWER_SAMPLE_INTERVAL_S = 0.02


class EnergyMeter(Protocol):
    """Counts the energy that a device takes.

    Attributes
    ----------
    source : str
        Where the numbers come from, for people.
    """

    @property
    def source(self) -> str: ...  # noqa: D102

    def read_mj(self) -> float:
        """Energy since some fixed instant, in millijoules; never decreases."""


def best_meter(device: str) -> tuple[EnergyMeter | None, str]:
    """Find the meter of a device.

    Parameters
    ----------
    device : str
        ``cpu`` or ``cuda``.

    Returns
    -------
    meter : EnergyMeter or None
        None where the energy cannot be read.
    note : str
        The meter's source, or why there is none.
    """
    try:
        meter: EnergyMeter = NvmlMeter() if device == "cuda" else RaplMeter()
    except InfeasibleError as error:
        return None, str(error)
    return meter, meter.source


class NvmlMeter:
    """Energy of the GPU that this process uses first.

    Volta and later count energy themselves; for older GPUs their power is sampled and integrated.

    Raises
    ------
    InfeasibleError
        There is no NVIDIA driver, no GPU, or it states neither energy nor power.
    """

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
            self._handle = _gpu_handle()
            name = pynvml.nvmlDeviceGetName(self._handle)
        except pynvml.NVMLError as error:
            raise InfeasibleError(f"NVML: {error}") from error
        self._integral: PowerIntegral | None = None
        try:
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
            self.source = f"NVML energy counter of {name}"
        except pynvml.NVMLError:
            try:
                self._integral = PowerIntegral(
                    lambda: float(pynvml.nvmlDeviceGetPowerUsage(self._handle))
                )
            except pynvml.NVMLError as error:
                raise InfeasibleError(
                    f"NVML: {name} states neither energy nor power: {error}"
                ) from error
            self.source = f"NVML power of {name}, integrated"
            self._integral.start()

    def read_mj(self) -> float:
        """Energy since the driver was loaded, or since the meter was made."""
        if self._integral is not None:
            return self._integral.read_mj()
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))


def _gpu_handle() -> Any:
    """Find the GPU that CUDA calls 0: torch knows it, else the environment says."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first and not first.isdigit():
        return pynvml.nvmlDeviceGetHandleByUUID(first)
    return pynvml.nvmlDeviceGetHandleByIndex(int(first or 0))


class PowerIntegral:
    """Energy as the integral of sampled power, by the trapezoidal rule.

    Parameters
    ----------
    read_power_mw : callable
        Gives the present power in milliwatts.
    clock : callable
        Gives the time in seconds.
    """

    def __init__(
        self,
        read_power_mw: Callable[[], float],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._read_power_mw, self._clock = read_power_mw, clock
        self._lock = threading.Lock()
        self._energy_mj = 0.0
        self._power_mw, self._at_s = read_power_mw(), clock()

    def start(self) -> None:
        """Sample from a thread of its own, until the process ends."""
        threading.Thread(target=self._sample_on, name="power-integral", daemon=True).start()

    def read_mj(self) -> float:
        """Take a sample; give the energy since the first."""
        with self._lock:
            power_mw, now_s = self._read_power_mw(), self._clock()
            self._energy_mj += 0.5 * (self._power_mw + power_mw) * (now_s - self._at_s)
            self._power_mw, self._at_s = power_mw, now_s
            return self._energy_mj

    def _sample_on(self) -> None:
        while True:
            time.sleep(POWER_SAMPLE_INTERVAL_S)
            try:
                self.read_mj()
            except pynvml.NVMLError:
                return  # whoever reads next sees the error


class RaplMeter:
    """Energy of all processor packages, and of their memory where that is counted apart.

    Parameters
    ----------
    root : Path
        Folder of the kernel's powercap interface.

    Raises
    ------
    InfeasibleError
        The machine has no such counters (most virtual ones have none), or they are not readable.
    """

    source = "RAPL counters of the whole machine's processors"

    def __init__(self, root: Path = POWERCAP) -> None:
        # A package counts its cores; psys, and the mmio twins, would count packages again.
        zones = [
            zone
            for zone in sorted(root.glob("intel-rapl:*"))
            if _read(zone / "name").startswith(("package", "dram"))
        ]
        if not zones:
            raise InfeasibleError(f"RAPL: this machine has no energy counters under {root}")
        self._zones = [_RaplZone(zone) for zone in zones]

    def read_mj(self) -> float:
        """Energy since the meter was made."""
        return sum(zone.read_uj() for zone in self._zones) / 1e3


class _RaplZone:
    """One counter of microjoules, unwrapped: it falls back to 0 past its range."""

    def __init__(self, zone: Path) -> None:
        self._counter = zone / "energy_uj"
        self._range_uj = int(_read(zone / "max_energy_range_uj"))
        self._last_uj = int(_read(self._counter))
        self._total_uj = 0

    def read_uj(self) -> int:
        now_uj = int(_read(self._counter))
        self._total_uj += (now_uj - self._last_uj) % self._range_uj
        self._last_uj = now_uj
        return self._total_uj


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        hint = ", only root may read it" if isinstance(error, PermissionError) else ""
        raise InfeasibleError(f"RAPL: {path}: {error.strerror}{hint}") from error
