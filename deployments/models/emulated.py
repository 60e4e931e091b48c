"""An emulated device: on any machine, a batch takes exactly the time of a profile.

A laptop can run with a GPU's numbers, from a paper or measured elsewhere. The tests measure its
accuracy.
"""

import ctypes
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.base import EnergyMeter, Model, TensorSpec
from policy.errors import InvalidInputError
from policy.profile import Profile

_PR_SET_TIMERSLACK = 29  # <linux/prctl.h>
# PyDLL keeps the interpreter lock: releasing it would cost more than the call.
_libc = ctypes.PyDLL(None) if sys.platform == "linux" else None


class Emulated(Model):
    """Echoes its input after the time of a profile, and counts the profile's energy.

    `profile` is the path of a profile file, or its content. `scale` is a factor on its latency, to
    emulate a slower or faster device; it does not change the energy. With `measured`, the replica
    is not told the profile and measures it, as on a real device.
    """

    inputs = (TensorSpec("input", "FP32", (1,)),)
    outputs = (TensorSpec("output", "FP32", (1,)),)
    #: For the emulated device.
    waits = True

    def __init__(
        self, profile: str | Mapping[str, Any], scale: float = 1.0, *, measured: bool = False
    ) -> None:
        if type(scale) not in (int, float) or not 0 < scale < math.inf:
            raise InvalidInputError(
                f"model emulated: scale must be a finite number above 0, not {scale!r}"
            )
        stated = Profile.load(profile) if isinstance(profile, str) else Profile.from_dict(profile)
        self._profile = replace(stated, latency_ms=stated.latency_ms * scale)
        self._latency_s = (self._profile.latency_ms / 1e3).tolist()
        self._measured = measured
        self._meter = None if stated.energy_mj is None else _EmulatedMeter(self._profile)

    def load(self, device: str) -> None:
        """Do nothing: the device is emulated, whatever `device` is."""

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Echo the batch after its time, counted from the start of this call."""
        started_s = time.perf_counter()
        batch_size = len(batch["input"])
        if not 1 <= batch_size <= len(self._latency_s):
            raise InvalidInputError(
                f"model emulated: the profile has batch sizes 1 to {len(self._latency_s)}, "
                f"not {batch_size}"
            )
        answer = {"output": np.array(batch["input"])}
        _sleep_until(started_s + self._latency_s[batch_size - 1])
        if self._meter is not None:
            self._meter.batch_ended(batch_size)
        return answer

    def energy_meter(self) -> EnergyMeter | None:
        return self._meter

    def profile(self) -> Profile | None:
        return None if self._measured else self._profile


class _EmulatedMeter:
    """The energy that a profile states: of the idle device at all times, and more for batches."""

    source = "emulated energy counter, which counts what the device's profile states"
    is_shared = False

    def __init__(self, profile: Profile) -> None:
        self._idle_power_w = profile.idle_power_w or 0.0
        self._above_idle_mj = profile.energy_mj_for_weight(1.0).tolist()
        self._batches_mj, self._since_s = 0.0, time.perf_counter()

    def batch_ended(self, batch_size: int) -> None:
        self._batches_mj += self._above_idle_mj[batch_size - 1]

    def read_mj(self) -> float:
        idle_s = time.perf_counter() - self._since_s
        return self._batches_mj + 1e3 * self._idle_power_w * idle_s


def _sleep_until(end_s: float) -> None:
    """Sleep until `end_s` on the clock of `time.perf_counter`.

    By default Linux may wake a thread up to 50 µs late to save energy (its timer slack); with the
    least timer slack it wakes about 5 µs late. Spinning until the end would gain 5 µs on an idle
    machine and lose 3 ms at a time on a busy one, because the scheduler preempts a thread that has
    spun.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    while (remaining_s := end_s - time.perf_counter()) > 0:
        time.sleep(remaining_s)
