"""Models that are hard to predict: they keep the interpreter's lock, take no time, or get much."""

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.base import Model, TensorSpec

#: The numbers of a row whose JSON has 600 KB.
LARGE_VALUES = 60_000
HELD_MS = 30.0
_libc = ctypes.PyDLL(None)  # its functions are called with the lock held


class _Echo(Model):
    """Returns the first number of a row."""

    inputs = (TensorSpec("x", "FP32", (1,)),)
    outputs = (TensorSpec("y", "FP32", (1,)),)

    def load(self, device: str) -> None: ...

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Answer a batch."""
        return {"y": np.asarray(batch["x"][:, :1], np.float32)}


class Instant(_Echo):
    """Takes a few microseconds."""


class HoldsLock(_Echo):
    """Keeps all other threads of the process from running for 30 ms."""

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Answer a batch."""
        _libc.usleep(round(1000 * HELD_MS))
        return super().forward(batch)


class Large(_Echo):
    """Takes 600 KB of JSON per row."""

    inputs = (TensorSpec("x", "FP32", (LARGE_VALUES,)),)
