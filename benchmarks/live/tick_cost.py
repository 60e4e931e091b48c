"""What a replica does once a second beside its requests, and for how long that keeps them waiting.

    python -m benchmarks.live.tick_cost [--rate REQUESTS] [--json]

A real service has answered the requests of a second in batches of two, behind an event loop that
was interrupted often, in a process without Ray. What is measured is the CPU time of each piece of
its tick, between two turns of the requests: all pieces together, and the longest. Every fifth tick
also predicts response times; what it does for that on a thread of its own is not counted.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Generator
from typing import Any

import click
import numpy as np

from benchmarks.arguments import json_option
from deployments.batcher.batch_record import BatchRecord
from deployments.batcher.requests import StartReason
from deployments.config import ModelConfig, parse_user_config
from deployments.haproxy.admin_answers import MeanTimes
from deployments.models.emulated import Emulated
from deployments.service import InferenceService
from policy.front import FrontCosts
from policy.profile import Profile
from policy.response_time.way import BalancerLoad
from sojourn.output import print_json, print_table

_LATENCY_MS = np.linspace(0.06, 0.37, 32, dtype=np.float64)
PROFILE = Profile("m", "cpu", _LATENCY_MS, front=FrontCosts(0.05, 0.05, shares_cpu=True))
#: Requests in a batch, and share of the loop's iterations that are held up.
BATCH, INTERRUPTED = 2, 0.1
TICKS = 46


class _Timed:
    """Awaits something, and notes the CPU time of each of its pieces."""

    def __init__(self, awaited: Awaitable[Any]) -> None:
        self.pieces_ms: list[float] = []
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._awaited.__await__()
        while True:
            began_s = time.thread_time()
            try:
                yielded = next(steps)
            except StopIteration:
                return
            finally:
                self.pieces_ms.append(1e3 * (time.thread_time() - began_s))
            yield yielded


async def _answer(service: InferenceService, requests: int) -> None:
    """Have the service count a second's requests, batches and iterations of its loop."""
    meter, core = service.front_meter, service.batcher.core
    for _ in range(requests // BATCH):
        wait_s = random.expovariate(5e3)
        record = BatchRecord(BATCH, StartReason.LIMIT, 0, wait_s, 1e-4, None, False, 1e-4, True)
        service.observer.batch_ended(record)
        for _ in range(BATCH):
            meter.request_read(time.monotonic())
            core.arrival_rate.count(time.monotonic())
            service.observer.answered(1, wait_s + 1e-4)
        if random.random() < INTERRUPTED:
            time.sleep(2e-4)
        await asyncio.sleep(0)


async def _measure(requests: int) -> dict[str, float]:
    config = ModelConfig(name="m", import_path="emulated", max_batch_size=32)
    service = InferenceService(config, Emulated(PROFILE.to_dict()), PROFILE)
    await service.configure(parse_user_config({"sla": {"response_time_ms": 20}}))
    balancer = BalancerLoad(0.03, 0.2, tuple(random.expovariate(10.0) for _ in range(512)))
    totals_ms, longest_ms = [], []
    try:
        for _ in range(TICKS):
            await _answer(service, requests)
            service.compare_with_balancer(MeanTimes(1.0, 0.0), balancer, 0.0, balancer.waits_ms)
            tick = _Timed(service.tick())
            await tick
            totals_ms.append(sum(tick.pieces_ms))
            longest_ms.append(max(tick.pieces_ms))
    finally:
        await service.close()
    # The first ones load and learn.
    totals, longest = np.array(totals_ms[TICKS // 3 :]), np.array(longest_ms[TICKS // 3 :])
    return {
        "tick_ms": float(np.median(totals)),
        "longest_piece_ms": float(np.median(longest)),
        "longest_piece_of_all_ms": float(longest.max()),
    }


@click.command()
@click.option(
    "--rate",
    type=click.IntRange(BATCH),
    default=6000,
    show_default=True,
    help="Requests of the second.",
)
@json_option
def main(rate: int, as_json: bool) -> None:
    """Measure what a replica does once a second beside its requests."""
    random.seed(1)
    found = asyncio.run(_measure(rate))
    if as_json:
        print_json(found)
        return
    print_table(("", "ms of CPU"), [(name, f"{value:.2f}") for name, value in found.items()])


if __name__ == "__main__":
    main()
