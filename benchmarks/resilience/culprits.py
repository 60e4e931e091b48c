"""A model whose device fails on certain inputs, for the experiments."""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.emulated import Emulated

#: Inputs that make the device hang, or kill the process.
HANG, POISON = -2.0, -3.0
_HANG_S = 60.0


class Culprits(Emulated):
    """The emulated device, and two inputs that it cannot stand."""

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Echo the batch, unless it holds an input that the device cannot stand."""
        values = set(np.asarray(batch["input"]).ravel().tolist())
        if POISON in values:
            os.kill(os.getpid(), signal.SIGKILL)
        if HANG in values:
            time.sleep(_HANG_S)
        return super().forward(batch)
