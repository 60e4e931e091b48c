"""Measure how far the duration of an emulated batch is from the one its profile states.

    python -m benchmarks.live.emulated_device [--quick] [--json] [--batches 500] [--latency-ms 3]

Batches run as in a replica: back to back in one executor thread, beside a uvloop event loop in the
same process. The loop is idle, or parses as many request bodies as another process can send it over
TCP. The machine is otherwise idle, or runs one busy process per core. Reports the quantiles of
(measured - stated) in milliseconds. Takes about half a minute.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import click
import numpy as np
import orjson
import uvloop

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import ROOT
from deployments.models.emulated import Emulated
from sojourn.output import print_json, print_table

ITEM = {"name": "x", "datatype": "FP32", "shape": [1, 256], "data": [0.5] * 256}
BODY = orjson.dumps({"inputs": [ITEM]}) + b"\n"
CONNECTIONS = 16
#: Requests that the loop must have answered before a measurement starts.
WARM_UP_REQUESTS = 1000
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True)
class Row:
    """The errors under one condition.

    Attributes
    ----------
    busy_processes : int
        Processes that compete for the cores.
    requests_per_s : float
        Requests that the event loop answered meanwhile.
    error_ms : dict of str to float
        Quantiles of measured minus stated batch time.
    """

    busy_processes: int
    requests_per_s: float
    error_ms: dict[str, float]


def measure(model: Emulated, batches: int) -> list[float]:
    """Run batches back to back, and return by how many ms each exceeded the stated time."""
    batch = model.example(1)
    profile = model.profile()
    assert profile is not None
    stated_ms = float(profile.latency_ms[0])
    errors_ms = []
    for _ in range(batches):
        entered_s = time.perf_counter()
        model.forward(batch)
        errors_ms.append((time.perf_counter() - entered_s) * 1e3 - stated_ms)
    return errors_ms


async def measure_beside_loop(
    model: Emulated, batches: int, busy: bool
) -> tuple[list[float], float]:
    """Measure in an executor beside this loop; return the errors and the loop's requests/s."""
    answered = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                np.asarray(orjson.loads(line)["inputs"][0]["data"], np.float32)
                writer.write(b"{}\n")
                answered += 1
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = str(server.sockets[0].getsockname()[1])
    sender = [sys.executable, "-m", "benchmarks.live.emulated_device", "--send-to", port]
    with running(sender if busy else None):
        while busy and answered < WARM_UP_REQUESTS:
            await asyncio.sleep(0.01)
        answered, started_s = 0, time.perf_counter()
        with ThreadPoolExecutor(1) as executor:
            loop = asyncio.get_running_loop()
            errors_ms = await loop.run_in_executor(executor, measure, model, batches)
        rate_per_s = answered / (time.perf_counter() - started_s)
        server.close()
    return errors_ms, rate_per_s


async def send(port: int) -> None:
    """Send bodies over `CONNECTIONS` connections, each one's next as soon as it has an answer."""

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            writer.write(BODY)
            await reader.readline()

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))


@contextlib.contextmanager
def running(command: list[str] | None) -> Iterator[None]:
    """Keep a process running while the context lasts."""
    if command is None:
        yield
        return
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@click.command()
@click.option("--batches", type=click.IntRange(min=1), default=500, show_default=True)
@click.option("--latency-ms", type=float, default=3.0, show_default=True, help="Stated time.")
@click.option("--send-to", type=int, hidden=True, help="Send request bodies to this port.")
@quick_option("A fifth of the batches.")
@json_option
def main(batches: int, latency_ms: float, send_to: int | None, quick: bool, as_json: bool) -> None:
    """Measure how far emulated batches are from the time that their profile states."""
    if send_to:
        uvloop.run(send(send_to))
    model = Emulated({"max_batch_size": 1, "latency_ms": [latency_ms]})
    if quick:
        batches = max(1, batches // 5)
    rows = []
    for hogs in (0, os.cpu_count() or 1):
        for busy in (False, True):
            with contextlib.ExitStack() as others:
                for _ in range(hogs):
                    others.enter_context(running([sys.executable, "-c", "while True: pass"]))
                errors_ms, rate_per_s = uvloop.run(measure_beside_loop(model, batches, busy))
            quantiles = np.quantile(errors_ms, list(QUANTILES.values())).tolist()
            rows.append(Row(hogs, rate_per_s, dict(zip(QUANTILES, quantiles, strict=True))))
    if as_json:
        print_json({"latency_ms": latency_ms, "rows": [asdict(row) for row in rows]})
        return
    print_table(
        ("busy processes", "requests/s", *(f"{name} ms" for name in QUANTILES)),
        [
            (
                row.busy_processes,
                f"{row.requests_per_s:,.0f}",
                *(f"{error:.3f}" for error in row.error_ms.values()),
            )
            for row in rows
        ],
        title=f"Batches of {latency_ms:g} ms: measured minus stated",
    )


if __name__ == "__main__":
    main()
