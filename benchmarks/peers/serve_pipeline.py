"""Ray Serve's composition with the stages of `benchmarks.pipelines`; prints one JSON object.

``python -m benchmarks.peers.serve_pipeline CLIENTS SECONDS STAGES FLOATS``

Each stage is a deployment; the next one is called through its handle. Batching is `serve.batch`.
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np
import ray
from ray import serve

from benchmarks.peers.pipeline_load import requests_per_s, seconds_per_request

_LIGHT = {"num_cpus": 0.01}
_OPTIONS: dict[str, Any] = {"ray_actor_options": _LIGHT, "max_ongoing_requests": 1000}


@serve.deployment(**_OPTIONS)
class Same:
    """Returns its input, after the next stage has."""

    def __init__(self, following: Any = None) -> None:
        self._next = following

    async def __call__(self, x: Any) -> Any:
        """Return x."""
        return x if self._next is None else await self._next.remote(x)


@serve.deployment(**_OPTIONS)
class Scale:
    """Doubles each array."""

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.0)  # type: ignore[untyped-decorator]
    async def _batch(self, batch: list[Any]) -> list[Any]:
        return [*(2 * np.stack(batch))]

    async def __call__(self, x: Any) -> Any:
        """Return the double."""
        return await self._batch(x)


@serve.deployment(**_OPTIONS)
class Shift:
    """Adds three to each array."""

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.0)  # type: ignore[untyped-decorator]
    async def _batch(self, batch: list[Any]) -> list[Any]:
        return [*(np.stack(batch) + 3)]

    async def __call__(self, x: Any) -> Any:
        """Return the sum."""
        return await self._batch(x)


@serve.deployment(**_OPTIONS)
class Front:
    """Calls the two stages, one after the other."""

    def __init__(self, scale: Any, shift: Any) -> None:
        self._scale, self._shift = scale, shift

    async def __call__(self, x: Any) -> Any:
        """Return 2 x + 3."""
        # A response that is passed on goes to the next replica without a copy in this one.
        return await self._shift.remote(self._scale.remote(x))


def _chain(stages: int) -> Any:
    bound: Any = None
    for number in range(stages):
        bound = Same.options(name=f"same{number}").bind(bound)  # type: ignore[attr-defined]
    return bound


async def measure(clients: int, seconds: float, stages: int, floats: int) -> dict[str, float]:
    """Return the time of a hop and the throughput."""
    loop = asyncio.get_running_loop()

    async def handle_of(bound: Any) -> Any:
        return await loop.run_in_executor(
            None, lambda: serve.run(bound, route_prefix=None, name="application")
        )

    times_s = []
    for count in (1, stages):
        handle = await handle_of(_chain(count))
        times_s.append(await seconds_per_request(handle.remote, 1, seconds))
    front = Front.bind(Scale.bind(), Shift.bind())  # type: ignore[attr-defined]
    handle = await handle_of(front)
    value = np.ones(floats, np.float32)
    await handle.remote(value)
    return {
        "hop_us": 1e6 * (times_s[1] - times_s[0]) / (stages - 1),
        "throughput_per_s": await requests_per_s(handle.remote, value, clients, seconds),
    }


if __name__ == "__main__":
    given = [float(word) for word in sys.argv[1:]]
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(proxy_location="Disabled")
    observed = asyncio.run(measure(int(given[0]), given[1], int(given[2]), int(given[3])))
    serve.shutdown()
    ray.shutdown()
    print(json.dumps(observed))
