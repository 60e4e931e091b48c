"""Compare the CPU time of a request over gRPC and over HTTP, of all processes of the service.

    python -m benchmarks.live.grpc_front [--quick] [--json]

Triton's clients ask one replica of the digits model, over HTTP with binary tensors and through
`sojourn grpc`, in turn, from 1 and from 64 closed loops. The clients' own time does not count.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

import click
import numpy as np
import psutil
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
import yaml
from tritonclient.grpc import InferInput as GrpcInput
from tritonclient.http import InferInput as HttpInput

from benchmarks.arguments import json_option, print_result, quick_option
from benchmarks.inputs import ROOT
from benchmarks.local_service import first_object, running_service
from sojourn.output import say

HTTP_PORT = 8127
LOOPS = (1, 64)


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time that processes and their descendants have used."""
    every = {one for process in processes for one in (process, *process.children(recursive=True))}
    return sum(sum(one.cpu_times()[:2]) for one in every)


async def ask(client: Any, tensor: Any, loops: int, requests: int) -> None:
    async def loop() -> None:
        for _ in range(requests // loops):
            await client.infer("digits", [tensor])

    await asyncio.gather(*(loop() for _ in range(loops)))


async def measure(
    service: psutil.Process, front: psutil.Process, grpc_port: int, requests: int, rounds: int
) -> list[dict[str, Any]]:
    image = np.zeros((1, 8, 8), np.float32)
    rows = []
    async with (
        triton_http.InferenceServerClient(f"127.0.0.1:{HTTP_PORT}") as over_http,
        triton_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}") as over_grpc,
    ):
        ways = [(over_http, HttpInput), (over_grpc, GrpcInput)]
        for loops in LOOPS:
            costs_us: list[list[float]] = [[], []]
            rates: list[list[float]] = [[], []]
            for _ in range(rounds):
                for number, (client, input_type) in enumerate(ways):
                    tensor = input_type("image", [1, 8, 8], "FP32").set_data_from_numpy(image)
                    await ask(client, tensor, loops, requests // 10)
                    began_s, used_s = time.perf_counter(), cpu_s((service, front))
                    await ask(client, tensor, loops, requests)
                    costs_us[number].append(1e6 * (cpu_s((service, front)) - used_s) / requests)
                    rates[number].append(requests / (time.perf_counter() - began_s))
            ratios = [grpc / http for http, grpc in zip(*costs_us, strict=True)]
            rows.append(
                {
                    "loops": loops,
                    "http_us": statistics.median(costs_us[0]),
                    "grpc_us": statistics.median(costs_us[1]),
                    "grpc_over_http": statistics.median(ratios),
                    "least": min(ratios),
                    "greatest": max(ratios),
                    "http_per_s": statistics.median(rates[0]),
                    "grpc_per_s": statistics.median(rates[1]),
                }
            )
            say(f"{loops} loops: {rows[-1]['grpc_over_http']:.2f} times the CPU time of HTTP")
    return rows


@click.command()
@quick_option("Three rounds of 3,200 requests instead of seven of 12,800.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure the CPU time of a request over gRPC and over HTTP."""
    requests, rounds = (3_200, 3) if quick else (12_800, 7)
    document = yaml.safe_load((ROOT / "configs" / "digits.yaml").read_text())
    # Nothing is to be refused: what counts is the cost of an answer.
    sla = document["applications"][0]["deployments"][0]["user_config"]["sla"]
    sla["response_time_ms"] = 5_000
    with running_service(document, HTTP_PORT) as service:
        command = (sys.executable, "-m", "sojourn.cli", "grpc", "--url", service.url)
        with subprocess.Popen(
            [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
        ) as front:
            assert front.stdout is not None
            port = first_object(front.stdout)["port"]
            ways = psutil.Process(service.process.pid), psutil.Process(front.pid)
            rows = asyncio.run(measure(*ways, port, requests, rounds))
            front.terminate()
    print_result({"costs": rows}, as_json)


if __name__ == "__main__":
    main()
