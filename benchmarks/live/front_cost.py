"""What a request costs a replica's event loop, on uvicorn's way and on the short way.

    python -m benchmarks.live.front_cost [--quick] [--json]

One process runs the same app behind uvicorn's HTTP protocol and behind Sojourn's
(`deployments.http.protocol`); another sends requests as HAProxy does, each with an id of its own.
The two take turns. What is measured is the CPU time of the event loop's thread per request, which
depends less than time does on what else the machine does. It includes the batches that the loop
runs itself. Refused requests are those of a replica that drains.
"""

import asyncio
import json
import socket
import statistics
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from typing import Any

import click
import numpy as np
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from benchmarks.arguments import json_option, quick_option
from benchmarks.peers.models import HOSTED
from benchmarks.peers.sojourn_config import user_config
from deployments.config import ModelConfig, parse_user_config
from deployments.http.app import InferenceApp
from deployments.http.protocol import HostedApp, InferenceProtocol
from deployments.service import InferenceService
from deployments.service_loading import load_service
from sojourn.output import print_json, say

CONNECTIONS = 64
MODELS = ("mlp", "digits")
PROTOCOLS = {"uvicorn": HttpToolsProtocol, "short way": InferenceProtocol}
_DISTINCT = 256


def requests_for(service: InferenceService) -> list[bytes]:
    """Return requests of one row as HAProxy passes them on, each with an id of its own."""
    random = np.random.default_rng(1)
    requests = []
    for _ in range(_DISTINCT):
        inputs = [
            {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": [1, *spec.shape],
                "data": random.random((1, *spec.shape)).round(4).tolist(),
            }
            for spec in service.signature.inputs
        ]
        body = json.dumps({"inputs": inputs}).encode()
        head = (
            f"POST /v2/models/{service.model_name}/infer HTTP/1.1\r\nhost: 127.0.0.1:8000\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-forwarded-for: 127.0.0.1\r\nx-request-id: {uuid.UUID(bytes=random.bytes(16))}\r\n"
            "x-sojourn-balancer: 1f00ab34\r\n\r\n"
        )
        requests.append(head.encode() + body)
    return requests


def send(port: int, requests: list[bytes], connections: int, rounds: int) -> dict[int, int]:
    """Send a request on each connection, take all answers, and so on; count answers by status."""
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    statuses: dict[int, int] = {}
    turn = 0
    for _ in range(rounds):
        for client in clients:
            client.sendall(requests[turn % len(requests)])
            turn += 1
        for client in clients:
            status = _read_answer(client)
            statuses[status] = statuses.get(status, 0) + 1
    for client in clients:
        client.close()
    return statuses


def _read_answer(client: socket.socket) -> int:
    answer = client.recv(65536)
    while (end := answer.find(b"\r\n\r\n")) < 0:
        answer += client.recv(65536)
    head = answer[:end].lower()
    start = head.index(b"content-length: ") + 16
    length = int(head[start : start + 12].split(b"\r\n", 1)[0])
    while len(answer) < end + 4 + length:
        answer += client.recv(65536)
    return int(answer[9:12])


@asynccontextmanager
async def _serving(app: InferenceApp, protocol: type[asyncio.Protocol]) -> AsyncIterator[int]:
    config = uvicorn.Config(
        app, port=0, http=protocol, lifespan="off", log_level="error", access_log=False
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.001)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def measure(name: str, rounds: int, repeats: int) -> list[dict[str, Any]]:
    """Return the CPU time per request of a model, by protocol and outcome, in µs."""
    hosted = HOSTED[name]
    service = load_service(
        ModelConfig(name=name, import_path=hosted.import_path, device="cpu", max_batch_size=32)
    )
    await service.configure(parse_user_config(user_config(name)))
    app = InferenceApp(service, "0")
    InferenceProtocol.hosted = HostedApp(app, asyncio.get_running_loop())
    requests = requests_for(service)
    results: list[dict[str, Any]] = []
    with ProcessPoolExecutor(1, get_context("spawn")) as client:
        async with (
            _serving(app, HttpToolsProtocol) as plain,
            _serving(app, InferenceProtocol) as short,
        ):
            ports = dict(zip(PROTOCOLS, (plain, short), strict=True))
            loop = asyncio.get_running_loop()
            for outcome, expected in (("answered", 200), ("refused", 503)):
                if outcome == "refused":
                    service.batcher.core.drain()
                costs: dict[str, list[float]] = {protocol: [] for protocol in PROTOCOLS}
                for repeat in range(repeats + 1):
                    for protocol, port in ports.items():
                        before_s = time.thread_time()
                        statuses = await loop.run_in_executor(
                            client, send, port, requests, CONNECTIONS, rounds
                        )
                        spent_s = time.thread_time() - before_s
                        if statuses != {expected: rounds * CONNECTIONS}:
                            raise click.ClickException(f"{name}: {outcome}: got {statuses}")
                        if repeat:  # the first warms up
                            costs[protocol].append(1e6 * spent_s / (rounds * CONNECTIONS))
                for protocol, values in costs.items():
                    results.append(
                        {
                            "model": name,
                            "outcome": outcome,
                            "protocol": protocol,
                            "cpu_us": statistics.median(values),
                            "lowest_us": min(values),
                            "highest_us": max(values),
                        }
                    )
    await service.close()
    return results


@click.command()
@quick_option("Fewer requests; takes about 10 seconds.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure what a request costs the event loop."""
    rounds, repeats = (50, 3) if quick else (100, 7)
    results: list[dict[str, Any]] = []
    for name in MODELS:
        say(f"front_cost: {name}")
        results += uvloop.run(measure(name, rounds, repeats))
    if as_json:
        print_json({"connections": CONNECTIONS, "results": results})
        return
    print(f"{'model':10}{'requests':>10}{'protocol':>12}{'CPU µs':>9}{'from':>8}{'to':>8}")
    for result in results:
        print(
            f"{result['model']:10}{result['outcome']:>10}{result['protocol']:>12}"
            f"{result['cpu_us']:9.1f}{result['lowest_us']:8.1f}{result['highest_us']:8.1f}"
        )


if __name__ == "__main__":
    main()
