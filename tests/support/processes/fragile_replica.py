"""A replica without Ray whose process some images kill: ``fragile_replica.py JOURNALS [full]``.

It is a script, so that it runs in a process of its own. It prints its port.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.control.policy_controller import TICK_S
from deployments.http.app import InferenceApp
from deployments.http.protocol import HostedApp, InferenceProtocol
from deployments.models.base import Model, TensorSpec
from deployments.serving.service import InferenceService
from policy.profile import Profile

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


async def main(journals: Path, *, full: bool) -> None:
    """Serve until told to stop; refuse everything if `full`."""
    config = ModelConfig(name="fragile", import_path="unused:Unused", max_batch_size=8)
    profile = Profile("fragile", "cpu", np.linspace(5.0, 20.0, 8))
    service = InferenceService(config, Fragile(), profile, journals=journals)
    await service.configure(
        parse_user_config(
            {
                "policy": {"objective": "weights"},
                "limits": {"late": "serve", "expert": {"max_queue_rows": 100}},
            }
        )
    )
    if full:
        service.batcher.core.drain()
    app = InferenceApp(service, "0")
    InferenceProtocol.hosted = HostedApp(app, asyncio.get_running_loop())
    server = uvicorn.Server(
        uvicorn.Config(
            app, port=0, http=InferenceProtocol, lifespan="off", log_level="error", access_log=False
        )
    )
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    sys.stdout.write(f"{server.servers[0].sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    while not serving.done():
        await asyncio.sleep(TICK_S)
        service.batcher.refresh()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), full="full" in sys.argv))
