"""A replica without Ray, in a process of its own (`benchmarks.resilience.without_ray`)."""

import asyncio
import sys
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from deployments.config.service_config import load_service_config
from deployments.control.policy_controller import TICK_S
from deployments.http.app import InferenceApp
from deployments.http.hosted_app import HostedApp
from deployments.http.protocol import InferenceProtocol
from deployments.serving.service_loading import load_service

HEALTH_PATH = "/-/healthz"


class HealthyApp:
    """The model's app, which also answers HAProxy's checks, as Ray's wrapper does."""

    def __init__(self, app: InferenceApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["path"] != HEALTH_PATH:
            await self._app(scope, receive, send)
            return
        headers = [(b"content-length", b"7")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"success"})


def serve() -> None:
    """Serve until told to stop; the process's arguments are those of `main`."""
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))


async def main(config: str, port: int, journals: Path) -> None:
    """Serve the model of a config on a port, with its journal of deaths in a folder."""
    service_config = load_service_config(config)
    service = load_service(service_config.args.model, service_config.num_cpus, journals)
    await service.configure(service_config.user_config)
    app = InferenceApp(service, str(port))
    InferenceProtocol.hosted = HostedApp(app, asyncio.get_running_loop())

    async def tick_forever() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await service.tick()

    ticking = asyncio.create_task(tick_forever())
    server = uvicorn.Config(
        HealthyApp(app),
        port=port,
        http=InferenceProtocol,
        lifespan="off",
        log_level="error",
        access_log=False,
    )
    await uvicorn.Server(server).serve()
    ticking.cancel()
    await service.close()
