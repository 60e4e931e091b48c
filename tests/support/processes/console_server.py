"""A fleet under load behind one console, without Ray: ``console_server.py PORT [USER_CONFIG]``.

The replicas are services on emulated devices, with the real autoscaler over their reports; they
share one process and its event loop. The first of them answers HTTP. USER_CONFIG is more of its
`user_config`, as JSON.

It is a script, so that it runs in a process of its own.
"""

import asyncio
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
from deployments.http.protocol import HostedApp, InferenceProtocol
from deployments.models.emulated import Emulated
from deployments.serving.service import InferenceService
from policy.profile import Profile
from tests.support.autoscaling.stores import Store
from tests.support.models.emulated_service import one_request

PROFILE = Profile.from_dict(
    {
        "max_batch_size": 32,
        "latency_ms": {"per_request": 3.051, "fixed": 10.52},
        "energy_mj": {"per_request": 199, "fixed": 196},
    }
)
USER_CONFIG: dict[str, Any] = {"sla": {"response_time_ms": 150, "percentile": 99}}
MAX_REPLICAS = 6
START_S = 2.0
#: Requests per second, in turns of so many seconds.
LOAD_PER_S, TURN_S = (120.0, 330.0, 480.0, 260.0), 30.0


class Fleet:
    """Replicas that come and go as the autoscaler decides."""

    def __init__(self, user_config: Mapping[str, Any]) -> None:
        self.services: list[InferenceService] = []
        self._user_config = parse_user_config({**USER_CONFIG, **user_config})
        self._made = 0
        self._target = 1
        self._store = Store()
        self._scaled = ScaledDeployment("default", "Replica", self._store)
        self._reports: dict[InferenceService, str] = {}
        self._random = random.Random(1)
        self._calls: set[asyncio.Task[None]] = set()

    async def start_one(self) -> None:
        self._made += 1
        config = ModelConfig(name="googlenet", import_path="emulated", max_batch_size=32)
        service = InferenceService(config, Emulated(PROFILE.to_dict()), PROFILE)
        await service.configure(self._user_config)
        self._reports[service] = f"replica-{self._made}"
        self.services.append(service)

    async def decisions(self) -> Mapping[str, Any]:
        content = self._store.kept.get(log_key("default", "Replica"))
        return {"newest": None, "decisions": []} if content is None else orjson.loads(content)

    async def tick(self) -> None:
        for service in self.services:
            await service.tick()
        now_s = time.time()
        reports = [
            ReplicaReport.from_floats(
                self._reports[service],
                now_s,
                {**service.autoscaling_stats(), "start_time_s": START_S, "dry_run": 0.0},
            )
            for service in self.services
        ]
        state = FleetState(self._target, 1, MAX_REPLICAS, ready_replicas=len(self.services))
        decision = self._scaled.decide(now_s, reports, state)
        self._scaled.record(now_s, self._target, decision)
        for _ in range(decision.replicas - self._target):
            asyncio.get_running_loop().call_later(START_S, self._start_soon)
        for _ in range(min(self._target, len(self.services)) - decision.replicas):
            service = self.services.pop()
            self._spawn(service.close())
        self._target = decision.replicas

    def _start_soon(self) -> None:
        self._spawn(self.start_one())

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def load(self) -> None:
        started_s = time.monotonic()
        due_s = started_s
        while True:
            turn = int((due_s - started_s) / TURN_S)
            due_s += self._random.expovariate(LOAD_PER_S[turn % len(LOAD_PER_S)])
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            self._spawn(self._send())

    async def _send(self) -> None:
        arrival_s = time.monotonic()
        for service in self._random.sample(self.services, len(self.services)):
            try:
                await service.infer(one_request(), arrival_s)
                service.count_answered(1, arrival_s)
                return
            except RequestError as error:
                if error.status != 503:
                    return


async def main(port: int, user_config: str = "{}") -> None:
    """Serve until told to stop."""
    fleet = Fleet(json.loads(user_config))
    await fleet.start_one()
    app = InferenceApp(fleet.services[0], "0", fleet.decisions, replica="replica-1")
    InferenceProtocol.hosted = HostedApp(app, asyncio.get_running_loop())

    async def tick_forever() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await fleet.tick()

    tasks = [asyncio.create_task(tick_forever()), asyncio.create_task(fleet.load())]
    config = uvicorn.Config(
        app, port=port, http=InferenceProtocol, lifespan="off", log_level="error", access_log=False
    )
    await uvicorn.Server(config).serve()
    for task in tasks:
        task.cancel()
    app.console.close()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), *sys.argv[2:]))
