"""The README's own model as a replica serves it, without Ray: ``front_server.py PORT [SOCKET]``.

SOCKET is the admin socket of a HAProxy whose name of this server ends in ``-front``.

It is a script, so that it runs in a process of its own; the folder of the model is on its path.
"""

import asyncio
import sys
from pathlib import Path

import uvicorn
import uvloop

from deployments.config import ModelConfig, parse_user_config
from deployments.control.policy_controller import TICK_S
from deployments.haproxy_view import HaproxyView
from deployments.http.app import InferenceApp
from deployments.http.protocol import HostedApp, InferenceProtocol
from deployments.service_loading import load_service


async def main(port: int, socket: str | None = None) -> None:
    """Serve until told to stop."""
    view = None if socket is None else HaproxyView("-front", Path(socket))
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
            if view is not None:
                service.compare_with_balancer(view.take(), view.way)
            await service.tick()

    tasks = [asyncio.create_task(tick_forever())]
    if view is not None:
        tasks.append(asyncio.create_task(view.watch()))
    config = uvicorn.Config(
        app,
        port=port,
        http=InferenceProtocol,
        lifespan="off",
        log_level="error",
        access_log=False,
    )
    await uvicorn.Server(config).serve()
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), *sys.argv[2:]))
