"""An emulated device: a batch takes exactly what a profile says, on any machine.

So a laptop can run a GPU's numbers, from a paper or measured elsewhere. How exactly, idle and under
load: ``benchmarks/live/emulated_device.py``.
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

from deployments.models.base import Model, TensorSpec
from policy.errors import InvalidInputError
from policy.profile import Profile

_PR_SET_TIMERSLACK = 29  # <linux/prctl.h>
# PyDLL keeps the interpreter's lock: letting it go would cost more than the call.
_libc = ctypes.PyDLL(None) if sys.platform == "linux" else None


class Emulated(Model):
    """Echoes its input after the time, and for the energy, that a profile states.

    Parameters
    ----------
    profile : str or mapping
        A profile file, or its content.
    scale : float
        Factor on the profile's latency, to emulate a slower or a faster device. Energy is left
        as it is.
    """

    inputs = (TensorSpec("input", "FP32", (1,)),)
    outputs = (TensorSpec("output", "FP32", (1,)),)

    def __init__(self, profile: str | Mapping[str, Any], scale: float = 1.0) -> None:
        if type(scale) not in (int, float) or not 0 < scale < math.inf:
            raise InvalidInputError(
                f"model emulated: scale must be a finite number above 0, not {scale!r}"
            )
        stated = Profile.load(profile) if isinstance(profile, str) else Profile.from_dict(profile)
        self._profile = replace(stated, latency_ms=stated.latency_ms * scale)
        self._latency_s = (self._profile.latency_ms / 1e3).tolist()

    def load(self, device: str) -> None:
        """Do nothing: the device is emulated, whatever `device` says."""

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Echo the batch when its time has passed, counted from the entry of this call."""
        entered_s = time.perf_counter()
        batch_size = len(batch["input"])
        if not 1 <= batch_size <= len(self._latency_s):
            raise InvalidInputError(
                f"model emulated: the profile has batch sizes 1 to {len(self._latency_s)}, "
                f"not {batch_size}"
            )
        answer = {"output": np.array(batch["input"])}
        _sleep_until(entered_s + self._latency_s[batch_size - 1])
        return answer

    def batch_energy_mj(self, batch_size: int) -> float | None:
        """Energy of a batch, as the profile states it."""
        energy_mj = self._profile.energy_mj
        return None if energy_mj is None else float(energy_mj[batch_size - 1])

    def profile(self) -> Profile | None:
        """Give the profile that is emulated, `scale` applied."""
        return self._profile


def _sleep_until(end_s: float) -> None:
    """Sleep until `end_s` on the clock of `time.perf_counter`.

    Linux wakes a thread up to 50 µs late to save energy, unless the thread asks it not to; asked,
    it is some 5 µs late. To wake early and spin the rest away was measured too: it gains 5 µs on
    an idle machine, and on a busy one loses 3 ms at a time, since a thread that has spun is the
    one that is taken off the processor.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    while (left_s := end_s - time.perf_counter()) > 0:
        time.sleep(left_s)
