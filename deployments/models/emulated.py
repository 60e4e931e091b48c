"""An emulated device: a batch takes exactly what a profile says, on any machine.

So a laptop can run a GPU's numbers, from a paper or measured elsewhere.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.base import Model, TensorSpec
from policy.profile import Profile
from sojourn.errors import InvalidInputError

# Asleep, the thread costs nothing but may be woken late; so it asks to be woken this long before
# the end, and gives the processor and the interpreter away again and again for what is left.
WAKE_EARLY_S = 0.3e-3


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
        _wait_until(entered_s + self._latency_s[batch_size - 1])
        return answer

    def batch_energy_mj(self, batch_size: int) -> float | None:
        """Energy of a batch, as the profile states it."""
        energy_mj = self._profile.energy_mj
        return None if energy_mj is None else float(energy_mj[batch_size - 1])

    def profile(self) -> Profile | None:
        """Give the profile that is emulated, `scale` applied."""
        return self._profile


def _wait_until(end_s: float) -> None:
    asleep_s = end_s - time.perf_counter() - WAKE_EARLY_S
    if asleep_s > 0:
        time.sleep(asleep_s)
    while time.perf_counter() < end_s:
        time.sleep(0)
