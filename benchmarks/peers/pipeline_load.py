"""The load for pipelines, the same for Sojourn and its peers; it needs no other package."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

Call = Callable[[Any], Awaitable[Any]]


async def seconds_per_request(call: Call, value: Any, seconds: float) -> float:
    """Send one request after the other, and return the median time of one."""
    times_s = []
    end_s = time.perf_counter() + seconds
    for _ in range(20):
        await call(value)
    while (started_s := time.perf_counter()) < end_s:
        await call(value)
        times_s.append(time.perf_counter() - started_s)
    return sorted(times_s)[len(times_s) // 2]


async def requests_per_s(call: Call, value: Any, clients: int, seconds: float) -> float:
    """Let some clients each send their next request once they have an answer; return the rate."""
    answered = 0
    started_s = time.perf_counter()
    end_s = started_s + seconds

    async def client() -> None:
        nonlocal answered
        while time.perf_counter() < end_s:
            await call(value)
            answered += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return answered / (time.perf_counter() - started_s)
