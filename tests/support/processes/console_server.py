"""A replica under load with a console, without Ray: ``console_server.py PORT [USER_CONFIG]``.

Its device is emulated, and the real autoscaler sees its reports. USER_CONFIG is more of its
`user_config`, as JSON. It is a script, so that it runs in a process of its own.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

import orjson
import uvicorn
import uvloop

from autoscaler.decision import FleetState
from autoscaler.reports import ReplicaReport
from autoscaler.scaled_deployments import ScaledDeployment, log_key
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.control.policy_controller import TICK_S
from deployments.errors import RequestError
from deployments.http.app import InferenceApp
from deployments.http.hosted_app import HostedApp
from deployments.http.protocol import InferenceProtocol
from deployments.models.emulated import Emulated
from deployments.serving.service import InferenceService
from policy.profile import Profile
from tests.support.autoscaling.stores import Store
from tests.support.models.emulated_service import infer

PROFILE = Profile.from_dict(
    {
        "max_batch_size": 32,
        "latency_ms": {"per_request": 3.051, "fixed": 10.52},
        "energy_mj": {"per_request": 199, "fixed": 196},
    }
)
USER_CONFIG: dict[str, Any] = {"sla": {"response_time_ms": 150, "percentile": 99}}
#: Ten times as much takes several times as many replicas.
LOAD_PER_S = 160.0


async def send(service: InferenceService) -> None:
    with contextlib.suppress(RequestError):
        await infer(service)


async def load(service: InferenceService) -> None:
    due_s = time.monotonic()
    async with asyncio.TaskGroup() as calls:
        while True:
            due_s += random.expovariate(LOAD_PER_S)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            calls.create_task(send(service))


async def main(port: int, user_config: str = "{}") -> None:
    """Serve until told to stop."""
    model = ModelConfig(name="googlenet", import_path="emulated", max_batch_size=32)
    service = InferenceService(model, Emulated(PROFILE.to_dict()), PROFILE)
    await service.configure(parse_user_config({**USER_CONFIG, **json.loads(user_config)}))
    store = Store()
    scaled = ScaledDeployment("default", "Replica", store)

    async def decisions() -> Mapping[str, Any]:
        content = store.kept.get(log_key("default", "Replica"))
        return {"newest": None, "decisions": []} if content is None else orjson.loads(content)

    async def tick_forever() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await service.tick()
            now_s = time.time()
            stats = {**service.autoscaling_stats(), "start_time_s": 2.0, "dry_run": 0.0}
            report = ReplicaReport.from_floats("replica-1", now_s, stats)
            decision = scaled.decide(now_s, [report], FleetState(1, 1, 1, ready_replicas=1))
            scaled.record(now_s, 1, decision)

    app = InferenceApp(service, "0", decisions, replica="replica-1")
    InferenceProtocol.hosted = HostedApp(app)
    tasks = [asyncio.create_task(tick_forever()), asyncio.create_task(load(service))]
    config = uvicorn.Config(
        app, port=port, http=InferenceProtocol, lifespan="off", log_level="error", access_log=False
    )
    await uvicorn.Server(config).serve()
    for task in tasks:
        task.cancel()
    app.console.close()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), *sys.argv[2:]))
