"""The README's own model as a replica serves it, without Ray: ``front_server.py PORT``.

It is a script, so that it runs in a process of its own; the folder of the model is on its path.
"""

import asyncio
import sys

import uvicorn
import uvloop

from deployments.config import ModelConfig, parse_user_config
from deployments.control.policy_controller import TICK_S
from deployments.http.app import InferenceApp
from deployments.http.protocol import HostedApp, InferenceProtocol
from deployments.service import load_service


async def main(port: int) -> None:
    """Serve until told to stop."""
    service = load_service(
        ModelConfig(name="doubler", import_path="doubler:Doubler", device="cpu", max_batch_size=32)
    )
    sla = {"response_time_ms": 100, "percentile": 99}
    await service.configure(parse_user_config({"sla": sla}))
    app = InferenceApp(service, "0")
    InferenceProtocol.hosted = HostedApp(app, asyncio.get_running_loop())

    async def tick_forever() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await service.tick()

    ticking = asyncio.create_task(tick_forever())
    config = uvicorn.Config(
        app,
        port=port,
        http=InferenceProtocol,
        lifespan="off",
        log_level="error",
        access_log=False,
    )
    await uvicorn.Server(config).serve()
    ticking.cancel()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
