"""Measure the cost of requests and batches on a replica's event loop.

The real HTTP app, batcher and protocol serve a model that takes no time, over the loopback
interface. Clients in a separate process keep the loop busy, and the policy starts batches of one
size at a time. The meter is the replica's own.
"""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import uvicorn
import uvloop
from numpy.typing import NDArray
from scipy.optimize import nnls

from deployments.batcher.event_loop_meter import EventLoopCounts
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.errors import StartError
from deployments.http.app import InferenceApp
from deployments.http.middleware import FastPath, middlewares, open_fast_path
from deployments.http.protocol import InferenceProtocol
from deployments.models.base import Model
from deployments.models.example_request import example_batch, example_request
from deployments.models.threads import thread_cpu_wait_s
from deployments.serving import closed_loop
from deployments.serving.service import InferenceService
from policy.batcher.requests import FixedPolicy
from policy.batching_policy import BatchingPolicy
from policy.event_loop import EventLoopCosts
from policy.profile import Profile

_CONNECTIONS = 32
"""So many, because a loop that is busy handles several requests an iteration."""
_BATCH_SIZES = (1, 2, 4, 8, 16)
_WARM_UP_S, _ROUND_S, _ROUNDS = 0.1, 0.15, 3
_START_S = 30.0
_TRIED_BATCHES, _BUSY_SHARE = 10, 0.5
_NAME = "profiled"


def measure_event_loop(model: Model, profile: Profile, *, shares_cpu: bool) -> EventLoopCosts:
    """Measure the event loop's costs for requests of one row of a model, in about four seconds.

    The model is loaded. It runs once; its example is the request. By its profile the batcher
    decides where batches run. Raises `StartError` if the requests were not answered.
    """
    found: list[EventLoopCosts | BaseException] = []

    def measure() -> None:
        try:
            costs = uvloop.run(_measure(model, profile))
            request_ms, batch_ms = round(costs.request_ms, 6), round(costs.batch_ms, 6)
            found.append(EventLoopCosts(request_ms, batch_ms, shares_cpu))
        except BaseException as error:
            found.append(error)

    # The loop has its own thread, so the thread's CPU time is the loop's.
    thread = threading.Thread(target=measure, name="profiled-event-loop")
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def runs_on_the_cpu(model: Model, batch_size: int) -> bool:
    """Return whether a batch keeps this machine's processor busy for most of its time."""
    model.forward(example_batch(model, batch_size))
    shares = []
    for _ in range(_TRIED_BATCHES):
        batch = example_batch(model, batch_size)
        cpu_s, run_s = time.process_time(), _undisturbed_s()
        model.forward(batch)
        shares.append((time.process_time() - cpu_s) / (_undisturbed_s() - run_s))
    # Other threads of this process add to a batch's share, so one batch may mislead.
    return float(np.median(shares)) > _BUSY_SHARE


def _undisturbed_s() -> float:
    """Return a clock that stands still while this thread waits for a CPU."""
    return time.perf_counter() - (thread_cpu_wait_s() or 0.0)


class _InstantModel(Model):
    """Returns at once the outputs that a model computed for its example."""

    def __init__(self, model: Model, max_batch_size: int) -> None:
        self.inputs, self.outputs = model.inputs, model.outputs
        self._model = model
        outputs = model.forward(example_batch(model, max_batch_size))
        self._outputs = {name: np.array(tensor) for name, tensor in outputs.items()}

    def load(self, device: str) -> None: ...

    def example(self, batch_size: int) -> dict[str, NDArray[Any]]:
        return dict(self._model.example(batch_size))

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        rows = len(next(iter(batch.values())))
        return {name: tensor[:rows] for name, tensor in self._outputs.items()}


async def _measure(model: Model, profile: Profile) -> EventLoopCosts:
    sizes = [size for size in _BATCH_SIZES if size <= profile.max_batch_size]
    instant = _InstantModel(model, max(sizes))
    config = ModelConfig(name=_NAME, import_path="unused:Unused", max_batch_size=max(sizes))
    service = InferenceService(config, instant, profile.up_to(max(sizes)))
    await service.configure(
        parse_user_config(
            {
                "policy": {"objective": "weights"},
                "sla": {"response_time_ms": 1e5},
                "limits": {"late": "serve", "max_body_bytes": 1 << 30},
            }
        )
    )
    request = _post_request(orjson.dumps(example_request(instant.inputs, instant.example(1))))
    rounds: list[EventLoopCounts] = []
    try:
        async with _listening(InferenceApp(service, "0")) as port:
            with _clients(port, request):
                await _first_answer(service)
                for size in _ROUNDS * sizes:
                    core = service.batcher.core
                    policy = BatchingPolicy.from_control_limit(size, size)
                    core.use(FixedPolicy(policy), core.limits)
                    await asyncio.sleep(_WARM_UP_S)
                    service.event_loop_meter.take()
                    await asyncio.sleep(_ROUND_S)
                    rounds.append(service.event_loop_meter.take())
    finally:
        FastPath.opened = InferenceProtocol.hosted = None
        await service.close()
    return _costs_of(rounds)


def _costs_of(rounds: Sequence[EventLoopCounts]) -> EventLoopCosts:
    """Return the costs per request and batch of least squared error, in CPU time."""
    counts = np.array([(one.requests, one.batches) for one in rounds], float)
    cpu_ms = np.array([1e3 * one.work_cpu_s for one in rounds])
    requests = np.maximum(counts[:, 0], 1)
    costs_ms, _ = nnls(counts / requests[:, None], cpu_ms / requests)
    request_ms, batch_ms = costs_ms.tolist()
    return EventLoopCosts(request_ms, batch_ms, shares_cpu=False)


async def _first_answer(service: InferenceService) -> None:
    until_s = time.monotonic() + _START_S
    while not service.answers[200, ""]:
        await asyncio.sleep(0.01)
        if service.answers or time.monotonic() > until_s:
            status = next((str(status) for status, _ in service.answers), "none")
            if status != "200":
                raise StartError(f"event loop: the model's example over HTTP was answered {status}")


def _post_request(body: bytes) -> bytes:
    return (
        f"POST /v2/models/{_NAME}/infer HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


@contextlib.asynccontextmanager
async def _listening(app: InferenceApp) -> AsyncIterator[int]:
    """Serve the app like a replica, on a free port."""
    middlewares()
    open_fast_path(app)
    config = uvicorn.Config(
        FastPath(app),
        http="auto",
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="critical",
    )
    server = uvicorn.Server(config)
    # Like a replica's server, which also listens on a Unix socket.
    listening = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server._serve([listening]))
    try:
        while not server.started:
            await asyncio.sleep(0.001)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await serving


@contextlib.contextmanager
def _clients(port: int, request: bytes) -> Iterator[None]:
    # By path, because importing the package takes a second.
    command = [sys.executable, closed_loop.__file__, str(port), str(_CONNECTIONS)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        process.stdin.write(request)
        process.stdin.close()
        yield
    finally:
        process.kill()
        process.wait()
