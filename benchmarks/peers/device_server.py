"""Serve a model on a device with uvicorn, without Ray, as a replica does: its policy follows it.

``python -m benchmarks.peers.device_server MODEL PORT DEVICE USER_CONFIG``, with `USER_CONFIG` in
JSON.
"""

import asyncio
import json
import sys

import uvicorn
import uvloop

from benchmarks.peers.models import HOSTED, MAX_BATCH_SIZE
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.control.policy_controller import TICK_S
from deployments.http.app import InferenceApp
from deployments.http.protocol import HostedApp, InferenceProtocol
from deployments.serving.service import InferenceService
from deployments.serving.service_loading import load_service


async def _tick_forever(service: InferenceService) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        await service.tick()


async def main() -> None:
    """Serve until told to stop."""
    name, port, device, user_config = sys.argv[1:]
    hosted = HOSTED[name]
    service = load_service(
        ModelConfig.model_validate(
            {
                "name": hosted.name,
                "import_path": hosted.import_path,
                "options": dict(hosted.options),
                "device": device,
                "max_batch_size": MAX_BATCH_SIZE,
            }
        )
    )
    await service.configure(parse_user_config(json.loads(user_config)))
    service.start.timings.ready()
    ticks = asyncio.create_task(_tick_forever(service))
    app = InferenceApp(service, "0")
    InferenceProtocol.hosted = HostedApp(app, asyncio.get_running_loop())
    server = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=int(port),
        http=InferenceProtocol,
        lifespan="off",
        log_level="error",
        access_log=False,
    )
    try:
        await uvicorn.Server(server).serve()
    finally:
        ticks.cancel()
        await service.close()


if __name__ == "__main__":
    uvloop.run(main())
