"""Models whose device fails on certain inputs, or takes long, for the experiments."""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.emulated import Emulated

#: Inputs that make the device raise an error, hang, or kill the process.
ERROR, HANG, POISON = -1.0, -2.0, -3.0
_HANG_S = 60.0

#: How long a batch takes for `Long`.
LONG_S = 20.0


class Long(Emulated):
    """A device that takes 20 s for each batch; for that of an example, which has zeros, no time."""

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Echo the batch."""
        if np.any(batch["input"]):
            time.sleep(LONG_S)
        return super().forward(batch)


class Culprits(Emulated):
    """The emulated device, and three inputs that it cannot stand."""

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Echo the batch, unless it holds an input that the device cannot stand.

        Raises
        ------
        ArithmeticError
            An input is `ERROR`.
        """
        values = set(np.asarray(batch["input"]).ravel().tolist())
        if POISON in values:
            os.kill(os.getpid(), signal.SIGKILL)
        if HANG in values:
            time.sleep(_HANG_S)
        if ERROR in values:
            raise ArithmeticError("the device cannot compute this input")
        return super().forward(batch)
