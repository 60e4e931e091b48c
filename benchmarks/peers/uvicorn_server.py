"""Serve Sojourn's own app with uvicorn, without Ray: an upper bound for the data path.

``python -m benchmarks.peers.uvicorn_server MODEL PORT``
"""

import asyncio
import sys

import uvicorn
import uvloop

from benchmarks.peers.models import HOSTED, MAX_BATCH_SIZE, user_config
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.http.app import InferenceApp
from deployments.http.protocol import HostedApp, InferenceProtocol
from deployments.serving.service_loading import load_service


async def main() -> None:
    """Serve until told to stop."""
    hosted = HOSTED[sys.argv[1]]
    config = ModelConfig(
        name=hosted.name,
        import_path=hosted.import_path,
        options=dict(hosted.options),
        device="cpu",
        max_batch_size=MAX_BATCH_SIZE,
    )
    service = load_service(config)
    await service.configure(parse_user_config(user_config(hosted.name)))
    app = InferenceApp(service, "0")
    InferenceProtocol.hosted = HostedApp(app, asyncio.get_running_loop())
    server = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=int(sys.argv[2]),
        http=InferenceProtocol,
        lifespan="off",
        log_level="error",
        access_log=False,
    )
    await uvicorn.Server(server).serve()


if __name__ == "__main__":
    uvloop.run(main())
