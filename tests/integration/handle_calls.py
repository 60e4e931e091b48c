"""Make handle calls between deployments on a real Ray for `test_handles`, and print the results.

This runs in its own process, because Ray reads its settings from the environment on import and ends
with the process.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from tests.support.waiting import until

RETRY_DELAY_MS = 50.0
SPREAD_CALLS = 400
CALLS_BESIDE_FULL_ONES = 80
#: Longer than the test takes.
LONG_S = 600.0
ROUTER = "deployments.serving.rand_router:RandRequestRouter"
LIGHT = {"num_cpus": 0.01}


@serve.deployment(
    ray_actor_options=LIGHT,
    num_replicas=4,
    max_ongoing_requests=1,
    request_router_config=RequestRouterConfig(
        request_router_class=ROUTER, request_router_kwargs={"retry_delay_ms": RETRY_DELAY_MS}
    ),
)
class Worker:
    """A replica that is full with one call."""

    async def work(self, duration_s, begun=""):
        """Take some time; leave a file in the folder `begun`, if there is one."""
        name = str(serve.get_replica_context().replica_id.unique_id)
        if begun:
            (Path(begun) / name).touch()
        await asyncio.sleep(duration_s)
        return name


@serve.deployment(ray_actor_options=LIGHT)
class Caller:
    def __init__(self, worker):
        self._worker = worker

    async def spread(self):
        """Make calls one after the other; count them by replica, and tell how long one takes."""
        calls = [await self._timed_call() for _ in range(SPREAD_CALLS)]
        durations_s = [duration_s for _, duration_s in calls]
        return {
            "counts": dict(Counter(replica for replica, _ in calls)),
            "median_s": statistics.median(durations_s),
        }

    async def beside_full_ones(self, calls):
        """Keep three of four replicas full; return where other calls go, and how long they take."""
        with tempfile.TemporaryDirectory() as begun:
            busy = [asyncio.ensure_future(self._called(LONG_S, begun)) for _ in range(3)]
            await until(lambda: len(os.listdir(begun)) == len(busy))
            found = [await self._timed_call() for _ in range(calls)]
            for task in busy:
                task.cancel()
        replicas, durations_s = zip(*found, strict=True)
        return {"replicas": replicas, "durations_s": durations_s}

    async def _timed_call(self):
        started_s = time.monotonic()
        return await self._called(0), time.monotonic() - started_s

    async def _called(self, duration_s, begun=""):
        return await self._worker.work.remote(duration_s, begun)


def main():
    os.environ["RAY_SERVE_LOG_TO_STDERR"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        logging_level="ERROR",
        log_to_driver=False,
    )
    try:
        serve.start(proxy_location="Disabled")
        caller = Caller.bind(Worker.bind())  # type: ignore[attr-defined]
        handle = serve.run(caller, name="rand", route_prefix=None)
        seen = {
            "spread": handle.spread.remote().result(),
            "beside_full_ones": handle.beside_full_ones.remote(CALLS_BESIDE_FULL_ONES).result(),
            "retry_delay_ms": RETRY_DELAY_MS,
        }
        sys.stdout.write(json.dumps(seen))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
