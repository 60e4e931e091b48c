"""A model as a replica serves it, without Ray: ``front_server.py PORT [SOCKET] [options]``.

SOCKET is the admin socket of a HAProxy in front of it. By default it serves the README's own model,
whose folder is on its path. It is a script, so that it runs in a process of its own.
"""

import argparse
import asyncio
import gc
import socket
from pathlib import Path

import uvicorn
import uvloop

from deployments.batcher import placement
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.control.policy_controller import TICK_S
from deployments.haproxy.stats import HaproxyStats
from deployments.http.app import InferenceApp
from deployments.http.middleware import listen_for_haproxy
from deployments.http.protocol import HostedApp, InferenceProtocol
from deployments.serving.service_loading import load_service


async def main(arguments: argparse.Namespace) -> None:
    """Serve until told to stop."""
    admin = arguments.socket
    stats = None if admin is None else HaproxyStats(arguments.server, admin)
    service = load_service(
        ModelConfig(
            name=arguments.name,
            import_path=arguments.import_path,
            device="cpu",
            max_batch_size=32,
        ),
        arguments.cpus,
    )
    sla = {"response_time_ms": arguments.response_time_ms, "percentile": 99}
    policy = {"objective": arguments.objective}
    await service.configure(parse_user_config({"sla": sla, "policy": policy}))
    app = InferenceApp(service, "0")
    InferenceProtocol.hosted = HostedApp(app, asyncio.get_running_loop())

    async def tick_forever() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if stats is not None:
                service.compare_with_proxy(await stats.read())
            await service.tick()

    gc.collect()
    gc.freeze()  # as a replica does
    ticking = asyncio.create_task(tick_forever())
    config = uvicorn.Config(
        app,
        http=InferenceProtocol,
        lifespan="off",
        log_level="error",
        access_log=False,
    )
    listen_for_haproxy()
    listening = socket.create_server(("127.0.0.1", arguments.port), backlog=config.backlog)
    await uvicorn.Server(config).serve([listening])
    ticking.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("socket", type=Path, nargs="?")
    parser.add_argument("--server", default="-front", help="how HAProxy's name of it ends")
    parser.add_argument("--name", default="doubler", help="name of the model")
    parser.add_argument("--import-path", default="doubler:Doubler")
    parser.add_argument("--response-time-ms", type=float, default=100.0)
    parser.add_argument("--objective", default="auto", help="of the policy")
    parser.add_argument("--cpus", type=float, help="of the process; by default the machine's")
    parser.add_argument("--longest-on-loop-ms", type=float, help="batch that the loop runs itself")
    given = parser.parse_args()
    if given.longest_on_loop_ms is not None:
        placement.LONGEST_ON_LOOP_MS = given.longest_on_loop_ms
    uvloop.run(main(given))
