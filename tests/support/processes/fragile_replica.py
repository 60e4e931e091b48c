"""Models whose process some images kill, and their service on a real Ray."""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.models.base import Model, TensorSpec
from tests.support.processes.services import load_document

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


def fragile_document(model: str, replicas: int, **limits: object) -> dict[str, Any]:
    """Return the config of one of these models, in an application of its name."""
    content = load_document("digits.yaml")
    application = content["applications"][0]
    application["name"] = model
    application["args"]["model"] |= {
        "name": "fragile",
        "import_path": f"tests.support.processes.fragile_replica:{model}",
        "max_batch_size": 4,
    }
    (deployment,) = application["deployments"]
    del deployment["autoscaling_config"]
    deployment["num_replicas"] = replicas
    deployment["ray_actor_options"] = {"num_cpus": 0.2}
    deployment["user_config"]["sla"]["response_time_ms"] = 10_000
    deployment["user_config"]["limits"] = limits
    return content
