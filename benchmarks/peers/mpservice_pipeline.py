"""The article's own library with the stages of `benchmarks.pipelines`; prints one JSON object.

``python -m benchmarks.peers.mpservice_pipeline CLIENTS SECONDS STAGES FLOATS``
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np
from mpservice.mpserver import AsyncServer, ProcessServlet, SequentialServlet, Servlet, Worker

from benchmarks.peers.pipeline_load import requests_per_s, seconds_per_request


class Same(Worker):  # type: ignore[misc]  # it is in another environment
    """Returns its input."""

    def call(self, x: Any) -> Any:
        """Return x."""
        return x


class Scale(Worker):  # type: ignore[misc]  # it is in another environment
    """Doubles each array of a batch."""

    def call(self, batch: list[Any]) -> list[Any]:
        """Return the doubles."""
        return [*(2 * np.stack(batch))]


class Shift(Worker):  # type: ignore[misc]  # it is in another environment
    """Adds three to each array of a batch."""

    def call(self, batch: list[Any]) -> list[Any]:
        """Return the sums."""
        return [*(np.stack(batch) + 3)]


def _chain(stages: int) -> Servlet:
    servlets = [ProcessServlet(Same) for _ in range(stages)]
    return servlets[0] if stages == 1 else SequentialServlet(*servlets)


async def measure(clients: int, seconds: float, stages: int, floats: int) -> dict[str, float]:
    """Return the time of a hop and the throughput."""
    times_s = []
    for count in (1, stages):
        async with AsyncServer(_chain(count)) as server:
            times_s.append(await seconds_per_request(server.call, 1, seconds))
    # The library's own wait, 10 ms, and none: the better of the two counts.
    rates = []
    for wait_s in (0.0, 0.01):
        servlet = SequentialServlet(
            *(ProcessServlet(w, batch_size=32, batch_wait_time=wait_s) for w in (Scale, Shift))
        )
        async with AsyncServer(servlet) as server:
            value = np.ones(floats, np.float32)
            await server.call(value)
            rates.append(await requests_per_s(server.call, value, clients, seconds))
    return {
        "hop_us": 1e6 * (times_s[1] - times_s[0]) / (stages - 1),
        "throughput_per_s": max(rates),
    }


if __name__ == "__main__":
    given = [float(word) for word in sys.argv[1:]]
    print(json.dumps(asyncio.run(measure(int(given[0]), given[1], int(given[2]), int(given[3])))))
