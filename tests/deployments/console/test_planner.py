"""The planner answers one question at a time, and the newest of those that wait."""

import asyncio
from functools import partial
from typing import Any

import pytest

from deployments.console import planner as planner_module
from deployments.console.planner import MAX_WAITING, PlannerProcess
from deployments.console.planning import ModelPlanning
from deployments.errors import ChildError, PlannerBusyError
from tests.support.console_server import PROFILE
from tests.support.waiting import LIMIT_S

DELAYS = {"request_delay_ms": 0.25, "reply_delay_ms": 0.25, "retry_delay_ms": 0.0, "retries": 5}


def question(rate_per_s: float) -> dict[str, Any]:
    scenario = {"response_time_ms": 150, "percentile": 99, "arrival_rate_per_s": rate_per_s}
    return {"profile": PROFILE.to_dict(), "delays": DELAYS, "scenarios": {"now": scenario}}


class Gate:
    """Stands in for the process: answers with the question once it is opened."""

    has_answered = True

    def __init__(self, planner: PlannerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.open = asyncio.Event()
        monkeypatch.setattr(planner, "_child", self)

    async def ask(self, message: dict[str, Any], time_limit_s: float) -> dict[str, Any]:
        self.asked.append(message["q"])
        await asyncio.wait_for(self.open.wait(), LIMIT_S)
        return message


async def test_a_question_that_runs_is_answered_and_then_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = PlannerProcess(ModelPlanning.process)
    gate = Gate(planner, monkeypatch)
    first = asyncio.create_task(planner.ask({"q": "first"}))
    while not gate.asked:
        await asyncio.sleep(0)
    later = [asyncio.create_task(planner.ask({"q": number})) for number in range(3)]
    await asyncio.sleep(0)
    gate.open.set()
    assert await first == {"q": "first"}
    answers = await asyncio.gather(*later, return_exceptions=True)
    assert gate.asked == ["first", 2]
    assert [type(answer) for answer in answers] == [PlannerBusyError] * 2 + [dict]


async def test_a_crowd_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = PlannerProcess(ModelPlanning.process)
    gate = Gate(planner, monkeypatch)
    asking = [asyncio.create_task(planner.ask({"q": n})) for n in range(MAX_WAITING + 1)]
    while not gate.asked:
        await asyncio.sleep(0)
    with pytest.raises(PlannerBusyError, match="ask again"):
        await planner.ask({"q": "one too many"})
    gate.open.set()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_the_process_runs_while_a_page_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []
    planner = PlannerProcess("the.module")
    for name in ("start", "keep", "let_go"):
        monkeypatch.setattr(planner._child, name, partial(did.append, name))
    planner.open_page()
    planner.open_page()
    planner.close_page()
    assert did == ["keep", "start", "keep"]
    planner.close_page()
    assert did[-1] == "let_go"


async def test_a_process_that_does_not_start_harms_no_page(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def popen(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("subprocess.Popen", popen)
    planner = PlannerProcess("the.module")
    planner.open_page()
    assert "the planner did not start: no more processes" in caplog.text
    with pytest.raises(ChildError, match="did not start: no more processes"):
        await planner.ask({})
    planner.close_page()
    planner.close()


@pytest.mark.slow
async def test_the_process_plans_and_survives_its_own_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner_module, "TIME_LIMIT_S", LIMIT_S)
    planner = PlannerProcess(ModelPlanning.process)
    try:
        few = (await planner.ask(question(100)))["now"]
        process = planner._child._process
        assert process is not None
        many = (await planner.ask(question(1000)))["now"]
        assert planner._child._process is process
        assert 1 <= few["replicas"] < many["replicas"]
        # What cannot be planned is said, and ends nothing.
        impossible = question(100)
        impossible["scenarios"]["now"]["response_time_ms"] = 5
        answer = (await planner.ask(impossible))["now"]
        assert "a batch of one takes" in answer["error"]
        process.kill()
        process.wait()
        assert (await planner.ask(question(100)))["now"] == few
        assert planner._child._process is not process
        # One that takes too long is ended.
        monkeypatch.setattr(planner_module, "TIME_LIMIT_S", 0.001)
        with pytest.raises(ChildError, match=r"longer than 0\.001 s; ask again"):
            await planner.ask(question(777))
    finally:
        planner.close()
    assert planner._child._process is None
