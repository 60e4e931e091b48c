"""Models whose process some images kill."""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.base import Model, TensorSpec

#: The first value of an image that ends the process.
POISON = 666.0
SHAPE = (3, 224, 224)


class Fragile(Model):
    """The mean of an image."""

    inputs = (TensorSpec("image", "FP32", SHAPE),)
    outputs = (TensorSpec("mean", "FP32"),)
    #: Batches run in the device thread, so that a process dies while its loop reads.
    waits = True

    def load(self, device: str) -> None: ...

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        images = batch["image"].reshape(len(batch["image"]), -1)
        if (images[:, 0] == POISON).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return {"mean": images.mean(1, dtype=np.float32)}


class SmallFragile(Fragile):
    """The same for images that fit into a packet."""

    inputs = (TensorSpec("image", "FP32", (4,)),)


class SlowFragile(Fragile):
    """The same, 50 ms for each batch."""

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        time.sleep(0.05)
        return super().forward(batch)
