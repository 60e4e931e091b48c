#!/usr/bin/env python
"""How far an emulated batch is off the time that its profile states.

The batches run as in a replica: back to back in one executor thread, beside a uvloop event loop in
the same process. That loop is idle, or parses the request bodies that another process sends it
over TCP, as many as it can take; the machine is otherwise idle, or has one more busy process per
core. Prints the quantiles of (taken - stated) in milliseconds.

    .venv/bin/python benchmarks/live/emulated_device.py [--batches 500] [--latency-ms 3]
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import orjson
import uvloop

from deployments.models.emulated import Emulated

ITEM = {"name": "x", "datatype": "FP32", "shape": [1, 256], "data": [0.5] * 256}
BODY = orjson.dumps({"inputs": [ITEM]}) + b"\n"
CONNECTIONS = 16
QUANTILES = (0.5, 0.9, 0.99, 1.0)


def measure(model: Emulated, batches: int) -> list[float]:
    """Run batches back to back: how many ms each was off."""
    batch = model.example(1)
    stated_ms = float(model.profile().latency_ms[0])
    errors_ms = []
    for _ in range(batches):
        entered_s = time.perf_counter()
        model.forward(batch)
        errors_ms.append((time.perf_counter() - entered_s) * 1e3 - stated_ms)
    return errors_ms


async def beside_loop(model: Emulated, batches: int, busy: bool) -> tuple[list[float], float]:
    """Measure in an executor beside this loop: the errors, and the requests per second answered."""
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
    with running([sys.executable, __file__, "--send-to", port] if busy else None):
        while busy and answered < 1000:
            await asyncio.sleep(0.01)
        answered, started_s = 0, time.perf_counter()
        with ThreadPoolExecutor(1) as executor:
            loop = asyncio.get_running_loop()
            errors_ms = await loop.run_in_executor(executor, measure, model, batches)
        rate_per_s = answered / (time.perf_counter() - started_s)
        server.close()
    return errors_ms, rate_per_s


async def send(port: int) -> None:
    """Send bodies over `CONNECTIONS` connections, each the next as soon as it has an answer."""

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            writer.write(BODY)
            await reader.readline()

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))


@contextlib.contextmanager
def running(command: list[str] | None) -> Iterator[None]:
    """Keep a process running meanwhile."""
    if command is None:
        yield
        return
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Measure each condition, and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--latency-ms", type=float, default=3.0)
    parser.add_argument("--send-to", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send_to:
        uvloop.run(send(options.send_to))
    model = Emulated({"max_batch_size": 1, "latency_ms": [options.latency_ms]})

    print("ms off       p50     p90     p99     max  beside")
    for hogs in (0, os.cpu_count() or 1):
        for busy in (False, True):
            with contextlib.ExitStack() as others:
                for _ in range(hogs):
                    others.enter_context(running([sys.executable, "-c", "while True: pass"]))
                errors_ms, rate_per_s = uvloop.run(beside_loop(model, options.batches, busy))
            cells = "".join(f"{value:8.3f}" for value in np.quantile(errors_ms, QUANTILES))
            print(
                f"        {cells}  {rate_per_s:,.0f} requests/s, {hogs} busy processes", flush=True
            )


if __name__ == "__main__":
    main()
