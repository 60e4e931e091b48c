"""A model whose device fails on certain inputs, or is slow, for the experiments."""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.emulated import Emulated

#: Inputs that make the device raise an error, hang, kill the process, or take `SLOW_S`.
ERROR, HANG, POISON, SLOW = -1.0, -2.0, -3.0, -4.0
SLOW_S = 20.0
_HANG_S = 60.0


class Culprits(Emulated):
    """The emulated device, three inputs that it cannot stand, and one that takes long."""

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
        if SLOW in values:
            time.sleep(SLOW_S)
        if ERROR in values:
            raise ArithmeticError("the device cannot compute this input")
        return super().forward(batch)
