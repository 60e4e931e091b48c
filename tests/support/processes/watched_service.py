"""A service of an emulated device behind its HTTP interface, with decisions of its autoscaler."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from deployments.control.policy_controller import TICK_S
from deployments.http.app import InferenceApp
from tests.support.models.emulated_service import emulated_service
from tests.support.ports import free_port
from tests.support.profiles import GOOGLENET_P4
from tests.support.waiting import LIMIT_S, wait_for

SLA = {"response_time_ms": 100, "percentile": 99}


async def serve(port: int, decisions: Mapping[str, Any], stop: asyncio.Event) -> None:
    """Serve until told to stop."""

    async def autoscaler() -> Mapping[str, Any]:
        return decisions

    async with emulated_service(GOOGLENET_P4, sla=SLA) as service:

        async def tick_forever() -> None:
            while True:
                await asyncio.sleep(TICK_S)
                await service.tick()

        app = InferenceApp(service, "0", autoscaler)
        config = uvicorn.Config(app, port=port, lifespan="off", log_level="error")
        server = uvicorn.Server(config)
        ticks = asyncio.create_task(tick_forever())
        running = asyncio.create_task(server.serve())
        await stop.wait()
        server.should_exit = True
        await running
        ticks.cancel()


@contextmanager
def watched_service(decisions: Mapping[str, Any], port: int = 0) -> Iterator[str]:
    """Serve from a thread; yield the URL."""
    port = port or free_port()
    stop, loop = asyncio.Event(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(port, decisions, stop),))
    thread.start()
    url = f"http://127.0.0.1:{port}"
    try:
        assert wait_for(lambda: httpx.get(f"{url}/v2/health/ready").status_code == 200)
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)
        loop.close()
