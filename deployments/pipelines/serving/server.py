"""Serve a pipeline with uvicorn, without Ray."""

import asyncio
import contextlib
import importlib.metadata
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from deployments.access.web_pages import is_loopback
from deployments.errors import StartError
from deployments.http.hosted_app import HostedApp
from deployments.http.protocol import InferenceProtocol
from deployments.local.machine import url_of
from deployments.pipelines.serving.app import PipelineApp
from deployments.pipelines.serving.config import PipelineFile
from deployments.pipelines.serving.service import PipelineService


async def serve_pipeline(config: PipelineFile, on_ready: Callable[[str], None]) -> None:
    """Serve a pipeline until SIGINT or SIGTERM; `on_ready` is called with the URL."""
    with _listen(config.http_host, config.http_port) as listener:
        service = PipelineService(config.pipeline, config.user_config)
        service.access.local_only = is_loopback(config.http_host)
        await service.start()
        loop = asyncio.get_running_loop()
        app = PipelineApp(service, importlib.metadata.version("sojourn"))
        InferenceProtocol.hosted = HostedApp(app)
        try:
            server = _Server(
                uvicorn.Config(
                    app,
                    http=InferenceProtocol,
                    ws="none",
                    lifespan="off",
                    log_level="error",
                    access_log=False,
                ),
            )

            def stop(number: int) -> None:
                service.begin_drain()
                server.handle_exit(number, None)

            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop, number)
            on_ready(url_of(config.http_host, config.http_port))
            await server.serve([listener])
        finally:
            InferenceProtocol.hosted = None
            app.console.close()
            await service.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise StartError(
            f"port {port} of {host}: {error.strerror}; choose another one with --port"
        ) from error


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the loop; uvicorn would raise them again before `close` ends."""
        yield
