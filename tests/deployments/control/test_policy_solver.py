import asyncio
import math
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.worker import WorkerError
from deployments.config.user_config import SLAConfig
from deployments.control import policy_solver
from deployments.control.policy_solver import (
    PolicySolver,
    SlaCapacity,
    Solved,
    SolveRequest,
    solve_in_worker,
    work_conserving_table,
)
from deployments.control.solve_cache import SolveCache
from deployments.control.worker_process import WorkerProcess
from policy.batcher.limits import Limits
from policy.errors import InfeasibleError
from policy.event_loop import EventLoopCosts
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.service_model import BatchingSettings, ServiceModel
from policy.tables.solving import solve_table
from policy.try_delays import TryDelays

PROFILE = Profile("m", "d", np.array([2.0, 3.0]))
SLA = SLAConfig(response_time_ms=10)


def request(profile=PROFILE, weights=None, percentile=99.0, time_ms=9.5, rows=2, **limits):
    bounds = Limits(math.inf, rows, profile.latency_ms.tolist(), **limits)
    sla = ServiceLevelObjective(time_ms, percentile)
    weights, settings = weights or Weights(), BatchingSettings()
    rest = sla, TryDelays(), profile, settings
    return SolveRequest(ServiceModel(profile, bounds, weights, SLA.objective, *rest))


REQUEST, OTHER = request(), request(rows=4)
CURVE = LoadLatenessCurve(100.0, tuple(np.linspace(0, 1, 16).tolist()))


class Solves:
    def __init__(self):
        self.requests: list[SolveRequest] = []
        self.cancelled: list[SolveRequest] = []
        self._results: list[asyncio.Future[Solved]] = []

    async def __call__(self, worker: WorkerProcess, request: SolveRequest):
        self.requests.append(request)
        self._results.append(asyncio.get_running_loop().create_future())
        try:
            return await self._results[-1]
        except asyncio.CancelledError:
            self.cancelled.append(request)
            raise

    async def finish(self, error=None, curve: LoadLatenessCurve | None = None):
        if error is None:
            table = work_conserving_table(PROFILE, Weights())
            self._results[-1].set_result((table, curve, None))
        else:
            self._results[-1].set_exception(error)
        await turns()


@pytest.fixture
def solves(monkeypatch):
    solves = Solves()
    monkeypatch.setattr(policy_solver, "solve_in_worker", solves)
    return solves


async def turns():
    for _ in range(3):
        await asyncio.sleep(0)


async def begin(solver: PolicySolver, request: SolveRequest, sla: SLAConfig = SLA):
    solver.solve(request, sla)
    await turns()


async def test_a_solution_is_announced_once_and_the_same_request_is_solved_once(solves):
    announced: list[bool] = []
    solver = PolicySolver(SLA, lambda: announced.append(solver.in_progress))
    assert solver.in_progress
    await begin(solver, REQUEST)
    await begin(solver, REQUEST)
    assert (solver.table, announced) == (None, [])
    await solves.finish()
    assert solver.table is not None
    assert len(announced) == 1
    assert not solver.in_progress
    assert solver.sla_capacity.out_of_reach
    await begin(solver, REQUEST)
    assert solves.requests == [REQUEST]


async def test_a_new_request_or_the_end_cancels_an_unfinished_one(solves):
    solver = PolicySolver(SLA, lambda: None)
    await begin(solver, REQUEST)
    await begin(solver, OTHER)
    assert solves.cancelled == [REQUEST]
    await solves.finish()
    assert solver.table is not None
    await begin(solver, REQUEST)
    await solver.close()
    assert solves.cancelled == [REQUEST, REQUEST]


async def test_a_changed_sla_is_reported_together_with_its_rate(solves):
    """With the rate of another SLA, the autoscaler would order for an SLA nobody asked for."""
    solver = PolicySolver(SLA, lambda: None)
    changed = SLAConfig(response_time_ms=15)
    for sla, curve in ((SLA, CURVE), (changed, replace(CURVE, sla_rate_per_s=60.0))):
        before = solver.sla_capacity
        await begin(solver, REQUEST, sla)
        assert solver.sla_capacity == before
        await solves.finish(curve=curve)
        assert solver.sla_capacity == SlaCapacity(sla, curve)


async def test_after_a_failure_the_old_table_stays_and_the_same_request_is_tried_again(
    solves, caplog
):
    solver = PolicySolver(SLA, lambda: None)
    await begin(solver, REQUEST)
    await solves.finish()
    table = solver.table
    await begin(solver, OTHER)
    await solves.finish(InfeasibleError("no policy in so short a time"))
    assert solver.error == "no policy in so short a time"
    assert "the policy in force stays: no policy" in caplog.text
    assert (solver.table, solver.in_progress) == (table, False)
    assert solver.sla_capacity.curve is None
    await begin(solver, OTHER)
    assert (solver.error, solver.in_progress) == (None, True)
    await solves.finish()
    assert solves.requests == [REQUEST, OTHER, OTHER]
    assert (solver.error, solver.in_progress) == (None, False)


async def test_a_solver_that_dies_is_started_again_after_longer_and_longer_pauses(solves):
    pauses_s: list[float] = []
    ends = asyncio.Queue[None]()

    async def sleep(duration_s):
        pauses_s.append(duration_s)
        await ends.get()

    solver = PolicySolver(SLA, lambda: None, sleep)
    await begin(solver, REQUEST)
    failures = 12
    for failure in range(1, failures + 1):
        await solves.finish(WorkerError("out of memory"))
        report = solver.report()
        assert (report["failures"], report["last_error"]) == (failure, "out of memory")
        assert 0 < report["next_try_s"] <= pauses_s[-1]
        assert (solver.in_progress, solver.error) == (True, None)
        ends.put_nowait(None)
        await turns()
        assert solver.report()["next_try_s"] is None
    assert pauses_s == [min(2.0**n, 300) for n in range(failures)]
    await solves.finish(curve=CURVE)
    assert solver.report() == {"failures": failures, "last_error": None, "next_try_s": None}
    assert (solver.sla_capacity.curve, solver.in_progress) == (CURVE, False)
    await begin(solver, OTHER)
    await solves.finish(WorkerError("killed"))
    await begin(solver, REQUEST)  # ends the pause
    assert solver.report()["last_error"] is None
    await solves.finish()
    assert (solves.requests[-2:], solver.in_progress) == ([OTHER, REQUEST], False)


async def test_a_smaller_capacity_counts_until_the_new_curve_is_solved(solves):
    solver = PolicySolver(SLA, lambda: None)
    solver.reduce_capacity(0.5)  # there is nothing to reduce yet
    await begin(solver, REQUEST)
    await solves.finish(curve=CURVE)
    for factor, rate_per_s in ((0.5, 50.0), (2.0, 50.0), (0.9, 45.0)):
        solver.reduce_capacity(factor)
        assert solver.sla_capacity.curve == replace(CURVE, sla_rate_per_s=rate_per_s)
    await begin(solver, OTHER)
    await solves.finish(curve=CURVE)
    assert solver.sla_capacity.curve == CURVE


WITH_ENERGY = Profile("m", "d", 1.0 + 0.5 * np.arange(1, 5), energy_mj=np.arange(2.0, 6.0))
SOLVED = {"profile": WITH_ENERGY, "weights": Weights(1.0, 2.0), "rows": 8}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_solver, "cache_folder", lambda: tmp_path)
    return tmp_path


async def solve(*requests: SolveRequest):
    with closing(WorkerProcess()) as worker:
        return [await solve_in_worker(worker, request) for request in requests]


@pytest.mark.slow
async def test_the_worker_solves_the_same_as_this_process(folder):
    table = solve_table(WITH_ENERGY, SOLVED["weights"])
    requests = [request(**SOLVED, **other) for other in ({}, {"percentile": 98.0})]
    curves = [replace(one.service, given=table).curve for one in requests]
    beyond = request(**SOLVED, time_ms=1.4)
    assert await solve(*requests, beyond) == [(table, one, None) for one in (*curves, None)]


@pytest.mark.slow
async def test_the_next_replica_loads_what_is_stored_and_solves_what_is_damaged(
    folder, monkeypatch
):
    stored = request(**SOLVED)
    solution = await solve(stored)
    for name in (stored.table_name, stored.curve_name):
        path = SolveCache(folder).path(name)
        path.write_text(path.read_text()[:50])
        assert await solve(stored) == solution
    monkeypatch.setattr(sys, "executable", "/none")
    assert await solve(stored) == solution
    event_loop = EventLoopCosts(0.1, 0.2, shares_cpu=True)
    for changed in (
        {"weights": Weights(1.0, 3.0)},
        {"percentile": 98.0},
        {"rows": 9},
        {"admit_within_ms": 9.2},
        {"profile": replace(WITH_ENERGY, event_loop=event_loop)},
    ):
        other = request(**{**SOLVED, **changed})
        assert not other.same_as(stored)
        with pytest.raises(WorkerError, match="did not start"):
            await solve(other)


@pytest.mark.slow
async def test_a_full_disk_costs_the_next_replica_time_but_not_this_one_its_table(
    monkeypatch, caplog
):
    monkeypatch.setattr(policy_solver, "cache_folder", lambda: Path("/dev/full"))
    ((table, *_),) = await solve(request(**SOLVED))
    assert table == solve_table(WITH_ENERGY, SOLVED["weights"])
    assert "not kept for other replicas" in caplog.text


@pytest.mark.parametrize("load", [0.02, 0.3, 0.5, 0.7, 0.85])
def test_the_first_table_leaves_an_event_loop_beside_the_device_time(load):
    event_loop = EventLoopCosts(0.1, 0.15, shares_cpu=False)
    profile = Profile("m", "d", 0.025 + 0.001 * np.arange(1, 17), event_loop=event_loop)
    rate_per_s = load * profile.capacity_per_s
    policy = work_conserving_table(profile, Weights()).lookup(rate_per_s)
    assert policy.control_limit == 1 or load >= 0.3
    assert evaluate(profile, policy, rate_per_s).mean_response_ms < 5
