import asyncio

import pytest

from autoscaler.worker import WorkerError
from deployments.console import planner as planner_module
from deployments.console.planner import MAX_WAITING, Planner
from deployments.errors import PlannerBusyError
from policy.try_delays import TryDelays
from tests.support.processes.console_server import PROFILE
from tests.support.waiting import LIMIT_S


def plan(rate_per_s, response_time_ms=150):
    scenario = {"percentile": 99, "arrival_rate_per_s": rate_per_s}
    scenario["response_time_ms"] = response_time_ms
    return "deployments.console.replica_plan:plan", (PROFILE, TryDelays(retries=5)), scenario


class Gate:
    def __init__(self, planner, monkeypatch):
        self.asked = []
        self.open = asyncio.Event()
        monkeypatch.setattr(planner, "_worker", self)

    async def ask(self, function, *, time_limit_s):
        self.asked.append(function)
        await asyncio.wait_for(self.open.wait(), LIMIT_S)
        return function


def call(function):
    return {"now": (str(function), (), {})}


async def test_a_crowd_is_refused_at_once(monkeypatch):
    planner = Planner()
    gate = Gate(planner, monkeypatch)
    asking = [asyncio.create_task(planner.ask(call(n))) for n in range(MAX_WAITING + 1)]
    while not gate.asked:
        await asyncio.sleep(0)
    with pytest.raises(PlannerBusyError, match="ask again"):
        await planner.ask(call("one too many"))
    gate.open.set()
    await asyncio.gather(*asking)
    assert gate.asked == [str(n) for n in range(MAX_WAITING + 1)]


async def test_what_is_as_in_the_last_question_is_not_planned_again(monkeypatch):
    planner = Planner()
    gate = Gate(planner, monkeypatch)
    gate.open.set()
    for then in ("1", "1", "2", "1"):
        question = call("now") | {"then": call(then)["now"]}
        assert await planner.ask(question) == {"now": "now", "then": then}
    assert gate.asked == ["now", "1", "2", "1"]


@pytest.mark.slow
async def test_the_worker_plans_and_a_dead_one_is_replaced(monkeypatch):
    monkeypatch.setattr(planner_module, "TIME_LIMIT_S", LIMIT_S)
    planner = Planner()
    try:
        answer = await planner.ask({"now": plan(100), "then": plan(1000)})
        assert 1 <= answer["now"]["replicas"] < answer["then"]["replicas"]
        worker = planner._worker._process
        assert worker is not None
        # The answer says why there is no plan.
        answer = await planner.ask({"now": plan(100, response_time_ms=5)})
        assert "out of reach" in answer["now"]["error"]
        assert planner._worker._process is worker
        worker.kill()
        worker.wait()
        assert (await planner.ask({"now": plan(200)}))["now"]["replicas"] >= 1
        assert planner._worker._process is not worker
        monkeypatch.setattr(planner_module, "TIME_LIMIT_S", 0.001)
        with pytest.raises(WorkerError, match=r"longer than 0\.001 s; ask again"):
            await planner.ask({"now": plan(777)})
    finally:
        planner.close()
