"""A real inference service over a tiny model, for the tests of the HTTP side."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import uvicorn
from numpy.typing import NDArray
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.http.app import InferenceApp
from deployments.http.hosted_app import HostedApp
from deployments.http.protocol import InferenceProtocol
from deployments.models.base import Model, TensorSpec
from deployments.serving.service import InferenceService
from policy.profile import Profile
from tests.support.waiting import LIMIT_S

PROFILE = Profile.from_dict(
    {
        "max_batch_size": 4,
        "latency_ms": {"per_request": 0.1, "fixed": 0.5},
        "energy_mj": {"per_request": 1, "fixed": 2},
    }
)


class Doubles(Model):
    """Doubles `x`; fails on the value 13, and blocks while the gate is closed."""

    inputs = (TensorSpec("x", "FP32", (2,)),)
    outputs = (TensorSpec("y", "FP32", (2,)),)
    #: For the gate.
    waits = True

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.rows: list[int] = []

    def load(self, device: str) -> None: ...

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        assert self.gate.wait(LIMIT_S)
        self.rows.append(len(batch["x"]))
        if (batch["x"] == 13).any():
            raise ArithmeticError("/secret/path: poison")
        return {"y": 2 * batch["x"]}


# The table of this objective is the fastest to solve.
POLICY = {"objective": "weights"}
USER_CONFIG: dict[str, Any] = {
    "policy": POLICY,
    "sla": {"response_time_ms": 50, "percentile": 95},
    # A slow machine must not turn answers into refusals.
    "limits": {
        "late": "serve",
        "expert": {"max_queue_rows": 8},
        "max_rows_per_request": 6,
        "max_body_bytes": 2000,
    },
}


@contextlib.asynccontextmanager
async def make_service(
    model: Model | None = None, name: str = "doubles", **user_config: Any
) -> AsyncIterator[InferenceService]:
    """Serve `model` over the real batcher until the context ends."""
    model = model or Doubles()
    config = ModelConfig(name=name, import_path="unused:Unused", max_batch_size=4)
    made = InferenceService(config, model, PROFILE)
    await made.configure(parse_user_config(USER_CONFIG | user_config))
    try:
        yield made
    finally:
        if isinstance(model, Doubles):
            model.gate.set()
        await made.close()


def body(*rows: tuple[float, float], **more: Any) -> dict[str, Any]:
    """Return the JSON body of an inference request for `rows`."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": rows}
    return {"inputs": [tensor], **more}


@contextlib.contextmanager
def hosting(app: InferenceApp) -> Iterator[None]:
    """Answer requests to `InferenceProtocol` by `app` on this loop until the context ends."""
    InferenceProtocol.hosted = HostedApp(app)
    try:
        yield
    finally:
        InferenceProtocol.hosted = None


@contextlib.asynccontextmanager
async def listening(
    app: Any, http: type[asyncio.Protocol] = HttpToolsProtocol
) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """Run a real uvicorn on a free port, as Ray does in each replica.

    With `InferenceProtocol`, the app must be hosted (`hosting`); `app` may also be what uvicorn
    calls instead.
    """
    config = uvicorn.Config(
        app,
        port=0,
        http=http,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.001)
    try:
        yield server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


@contextlib.asynccontextmanager
async def serving(
    model: Model | None = None,
    http: type[asyncio.Protocol] = InferenceProtocol,
    name: str = "doubles",
    **user_config: Any,
) -> AsyncIterator[tuple[InferenceService, uvicorn.Server, int]]:
    """Serve `model` over HTTP as a replica does; yield its service, the server and its port."""
    async with make_service(model, name, **user_config) as service:
        app = InferenceApp(service, "1")
        with hosting(app):
            async with listening(app, http) as (server, port):
                yield service, server, port
