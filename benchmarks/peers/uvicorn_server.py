"""Serve a model with Sojourn's own app on uvicorn, without Ray: an upper bound for the data path.

``python -m benchmarks.peers.uvicorn_server MODEL PORT [DEVICE USER_CONFIG]``, with `USER_CONFIG` in
JSON. The policy follows the load, as a replica's does.
"""

import asyncio
import json
import sys

import uvicorn
import uvloop

from benchmarks.peers.models import model_section, user_config
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.control.policy_controller import TICK_S
from deployments.http.app import InferenceApp
from deployments.http.hosted_app import HostedApp
from deployments.http.protocol import InferenceProtocol
from deployments.serving.service import InferenceService
from deployments.serving.service_loading import load_service


async def _tick_forever(service: InferenceService) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        await service.tick()


async def main(name: str, port: int, device: str, config: str) -> None:
    """Serve until told to stop."""
    section = model_section(name) | {"device": device}
    service = load_service(ModelConfig.model_validate(section))
    await service.configure(parse_user_config(json.loads(config) or user_config(name)))
    service.start.timings.ready()
    ticks = asyncio.create_task(_tick_forever(service))
    app = InferenceApp(service, "0")
    InferenceProtocol.hosted = HostedApp(app)
    server = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
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
    model, at, *rest = sys.argv[1:]
    chosen_device, chosen_config = rest or ("cpu", "{}")
    uvloop.run(main(model, int(at), chosen_device, chosen_config))
