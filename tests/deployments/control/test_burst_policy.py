"""When a policy for bursts is searched, put in force, and dropped."""

import asyncio
from contextlib import closing
from dataclasses import asdict
from itertools import cycle, islice

import numpy as np
import pytest

from deployments.config.service_config import parse_user_config
from deployments.control import table_solver
from deployments.control.burst_policy import LOOK_EVERY, SEARCH_EVERY, BurstPolicy
from deployments.control.burst_policy_process import solve
from deployments.control.child_process import ChildProcess
from deployments.control.observations import Observations
from deployments.control.policy_controller import PolicyController
from policy.batching_policy import BatchingPolicy
from policy.burstiness import COUNT_WINDOW_S
from policy.errors import InfeasibleError
from policy.mmpp import Mmpp
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.mmpp import evaluate_mmpp
from policy.table import PolicyTable
from tests.support.mmpp_counts import mmpp_counts
from tests.support.waiting import LIMIT_S

PROFILE = Profile("m", "d", np.array([2.0, 2.5, 3.0, 3.5]), np.array([20.0, 25.0, 30.0, 35.0]))
SLA = ServiceLevelObjective(12, 99)
AT_ONCE = BatchingPolicy.from_control_limit(1, 4)
WAITING = BatchingPolicy.from_control_limit(4, 4, 9.0)
FOUND = BatchingPolicy.from_control_limit(3, 4, 7.0)
TABLE = PolicyTable((900.0,), (WAITING, AT_ONCE), "")
ROOM = 8
BURSTS = mmpp_counts(Mmpp((200.0, 800.0), (0.5, 0.5)), 10_000, COUNT_WINDOW_S, seed=1)
OTHERS = mmpp_counts(Mmpp((200.0, 1200.0), (0.5, 0.5)), 10_000, COUNT_WINDOW_S, seed=2)


class Child:
    """Answers in place of the child process, when told to."""

    def __init__(self):
        self.messages = []
        self.answer = asyncio.Event()

    async def ask(self, message):
        self.messages.append(message)
        await self.answer.wait()
        return FOUND.to_dict()


@pytest.fixture
def child(monkeypatch):
    child = Child()
    monkeypatch.setattr(ChildProcess, "ask", lambda _, message: child.ask(message))
    return child


@pytest.fixture
def changes():
    return []


@pytest.fixture
def bursts(changes):
    return BurstPolicy(lambda: changes.append(True))


async def pass_ticks(bursts, ticks, counts):
    counts = cycle(counts)  # ten to a tick
    for _ in range(ticks):
        bursts.observe(list(islice(counts, 10)))
        bursts.revise(PROFILE, SLA, ROOM, TABLE)
        await asyncio.sleep(0)


async def test_bursts_get_a_policy_at_all_their_rates(bursts, child, changes):
    await pass_ticks(bursts, SEARCH_EVERY - 1, BURSTS)
    assert not bursts.solving
    await pass_ticks(bursts, 1, BURSTS)
    assert bursts.solving
    assert bursts.policy is None
    assert bursts.applied_to(TABLE) is TABLE
    child.answer.set()
    await pass_ticks(bursts, 2, BURSTS)
    assert bursts.policy == FOUND
    assert len(changes) == len(child.messages) == 1
    message = child.messages[0]
    assert bursts.process is not None
    assert message["start"] == TABLE.policies[0].to_dict()
    assert message["objective"] == asdict(SLA)
    assert message["waiting_room"] == ROOM
    assert message["process"]["rates_per_s"] == pytest.approx((200, 800), rel=0.15)
    table = bursts.applied_to(TABLE)
    low, high = 0.8 * min(bursts.process.rates_per_s), 1.2 * max(bursts.process.rates_per_s)
    assert table.lookup(0.99 * high) == table.lookup(1.01 * low) == FOUND
    assert table.lookup(high) == AT_ONCE
    assert table.lookup(0.99 * low) == WAITING


async def test_the_same_bursts_are_not_solved_again_but_others_are(bursts, child, changes):
    child.answer.set()
    await pass_ticks(bursts, 1000, BURSTS)
    searches = len(child.messages)
    assert searches <= 6  # of the 16 that there may be: the estimate settles
    await pass_ticks(bursts, 1000, OTHERS)
    assert searches + 1 < len(child.messages) <= searches + 16
    assert max(bursts.process.rates_per_s) == pytest.approx(1200, rel=0.1)


async def test_steady_arrivals_end_the_policy(bursts, child, changes):
    child.answer.set()
    await pass_ticks(bursts, SEARCH_EVERY + 1, BURSTS)
    assert bursts.policy is not None
    steady = np.random.default_rng(1).poisson(50, 40_000).tolist()
    await pass_ticks(bursts, 4000, steady)
    assert bursts.policy is None
    assert bursts.applied_to(TABLE) is TABLE
    assert len(changes) >= 2


@pytest.mark.parametrize("counts", [[49, 51], [20] * 1000 + [80] * 1000], ids=["weak", "slow"])
async def test_weak_bursts_and_slow_ones_need_no_policy(bursts, child, counts):
    await pass_ticks(bursts, 400, counts)
    assert not child.messages


async def test_what_is_forgotten_while_it_is_solved_never_comes_into_force(bursts, child, changes):
    await pass_ticks(bursts, SEARCH_EVERY, BURSTS)
    assert bursts.solving
    bursts.forget()
    child.answer.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bursts.policy is None
    assert not changes
    await pass_ticks(bursts, LOOK_EVERY, BURSTS)
    assert len(child.messages) == 2
    await bursts.close()


async def test_a_failed_search_leaves_the_table_and_is_repeated_later(bursts, monkeypatch, caplog):
    asked = []

    async def fails(_, message):
        asked.append(message)
        raise InfeasibleError("no")

    monkeypatch.setattr(ChildProcess, "ask", fails)
    await pass_ticks(bursts, 3 * SEARCH_EVERY, BURSTS)
    assert bursts.policy is None
    assert len(asked) == 3
    assert "solving for bursts failed: no" in caplog.text


@pytest.mark.slow
async def test_the_child_process_keeps_the_sla_with_a_margin():
    process = Mmpp((300.0, 900.0), (0.2, 0.05))
    message = {
        "profile": PROFILE.to_dict(),
        "process": asdict(process),
        "objective": asdict(SLA),
        "waiting_room": 40,
        "start": WAITING.to_dict(),
    }
    with closing(ChildProcess("deployments.control.burst_policy_process")) as child:
        found = await child.ask(message)
    policy = BatchingPolicy.from_dict(found)
    assert policy == solve(message)
    assert evaluate_mmpp(PROFILE, policy, process).service_level(12) >= 0.993


@pytest.mark.slow
async def test_a_policy_for_bursts_is_in_force_until_something_else_is_asked_for(
    monkeypatch, tmp_path
):
    ask, solved = ChildProcess.ask, asyncio.Event()

    async def answer(child, message, *limits):
        if "process" in message:
            return FOUND.to_dict()
        return await ask(child, message, *limits)

    def on_change():
        solved.set()

    monkeypatch.setattr(ChildProcess, "ask", answer)
    monkeypatch.setattr(table_solver, "cache_folder", lambda: tmp_path)
    user_config = parse_user_config({"sla": {"response_time_ms": 25, "percentile": 99}})
    controller = PolicyController(PROFILE, user_config, on_change)
    try:
        await asyncio.wait_for(solved.wait(), LIMIT_S)
        assert controller.explain()["bursts"]["policy"] == "none"
        counts = BURSTS
        for tick in range(SEARCH_EVERY + 2):
            arrived = counts[10 * tick : 10 * tick + 10]
            await controller.tick(Observations([], [], 0, arrived))
            await asyncio.sleep(0)
        report = controller.explain()["bursts"]
        assert report["policy"] == "in force"
        assert report["rates_per_s"] == pytest.approx((200, 800), rel=0.2)
        assert controller.core.table.lookup(250.0) == FOUND
        controller.configure(parse_user_config({"sla": {"response_time_ms": 30, "percentile": 99}}))
        assert controller.explain()["bursts"]["policy"] == "none"
    finally:
        await controller.close()
