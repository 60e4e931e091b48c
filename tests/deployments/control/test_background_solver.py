"""Which requests are solved, and what stays in force meanwhile."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from deployments.config.service_config import SLAConfig
from deployments.control import background_solver
from deployments.control.background_solver import BackgroundSolver
from deployments.control.child_process import ChildProcess
from deployments.control.solve_request import SolveRequest, SolveResult
from deployments.control.table_solver import work_conserving_table
from deployments.errors import ChildError
from policy.errors import InfeasibleError
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile

PROFILE = Profile("m", "d", np.array([2.0, 3.0]))
SLA = SLAConfig(response_time_ms=10)
REQUEST = SolveRequest(PROFILE, Weights(), ServiceLevelObjective(9.5, 99.0), waiting_room=2)
CURVE = LoadLatenessCurve(100.0, tuple(np.linspace(0, 1, 16).tolist()))
OTHER = replace(REQUEST, waiting_room=4)


class Solves:
    """Solve requests when the test says so."""

    def __init__(self) -> None:
        self.requests: list[SolveRequest] = []
        self.limits_s: list[float] = []
        self.cancelled: list[SolveRequest] = []
        self._results: list[asyncio.Future[SolveResult]] = []

    async def __call__(
        self, child: ChildProcess, request: SolveRequest, time_limit_s: float
    ) -> SolveResult:
        self.requests.append(request)
        self.limits_s.append(time_limit_s)
        self._results.append(asyncio.get_running_loop().create_future())
        try:
            return await self._results[-1]
        except asyncio.CancelledError:
            self.cancelled.append(request)
            raise

    async def finish(
        self, error: Exception | None = None, curve: LoadLatenessCurve | None = None
    ) -> None:
        """End the latest solve."""
        if error is None:
            table = work_conserving_table(PROFILE, Weights())
            self._results[-1].set_result(SolveResult(table, curve))
        else:
            self._results[-1].set_exception(error)
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> Solves:
    solves = Solves()
    monkeypatch.setattr(background_solver, "solve_in_child", solves)
    return solves


async def test_a_solution_is_announced_once_it_is_there(solves: Solves) -> None:
    announced: list[bool] = []
    solver = BackgroundSolver(SLA, lambda: announced.append(solver.in_progress))
    assert solver.in_progress
    solver.solve(REQUEST, SLA)
    await asyncio.sleep(0)
    assert (solver.table, announced) == (None, [])
    await solves.finish()
    assert solver.table is not None
    assert len(announced) == 1
    assert not solver.in_progress
    assert solver.sla_capacity.out_of_reach


async def test_the_same_request_is_solved_once(solves: Solves) -> None:
    solver = BackgroundSolver(SLA, lambda: None)
    solver.solve(REQUEST, SLA)
    await asyncio.sleep(0)
    solver.solve(REQUEST, SLA)
    await solves.finish()
    solver.solve(REQUEST, SLA)
    await asyncio.sleep(0)
    assert solves.requests == [REQUEST]


async def test_a_new_request_replaces_an_unfinished_one(solves: Solves) -> None:
    solver = BackgroundSolver(SLA, lambda: None)
    solver.solve(REQUEST, SLA)
    await asyncio.sleep(0)
    solver.solve(OTHER, SLA)
    await asyncio.sleep(0)
    assert solves.cancelled == [REQUEST]
    await solves.finish()
    assert solver.table is not None
    await solver.close()


async def test_after_a_failure_the_old_table_stays_and_the_same_request_is_tried_again(
    solves: Solves, caplog: pytest.LogCaptureFixture
) -> None:
    solver = BackgroundSolver(SLA, lambda: None)
    solver.solve(REQUEST, SLA)
    await asyncio.sleep(0)
    await solves.finish()
    table = solver.table
    solver.solve(OTHER, SLA)
    await asyncio.sleep(0)
    await solves.finish(InfeasibleError("no policy in so short a time"))
    assert solver.error == "no policy in so short a time"
    assert "the policy in force stays: no policy" in caplog.text
    assert (solver.table, solver.in_progress) == (table, False)
    assert solver.sla_capacity.curve is None
    solver.solve(OTHER, SLA)
    assert (solver.error, solver.in_progress) == (None, True)
    await asyncio.sleep(0)
    await solves.finish()
    assert solves.requests == [REQUEST, OTHER, OTHER]
    assert (solver.error, solver.in_progress) == (None, False)


class Pauses:
    """Sleep until the test says so."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._over = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._over.clear()
        await self._over.wait()

    async def end(self) -> None:
        """End the pause."""
        self._over.set()
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_solver_that_dies_is_started_again_after_longer_and_longer_pauses(
    solves: Solves, caplog: pytest.LogCaptureFixture
) -> None:
    pauses = Pauses()
    solver = BackgroundSolver(SLA, lambda: None, pauses)
    solver.solve(REQUEST, SLA)
    await asyncio.sleep(0)
    failures = 12
    for failure in range(1, failures + 1):
        await solves.finish(ChildError("out of memory"))
        report = solver.report()
        assert (report["failures"], report["last_error"]) == (failure, "out of memory")
        assert 0 < report["next_try_s"] <= pauses.seconds[-1]
        assert (solver.in_progress, solver.error) == (True, None)
        await pauses.end()
        assert solver.report()["next_try_s"] is None
    assert pauses.seconds == [min(2.0**n, 300) for n in range(failures)]
    assert solves.limits_s == [min(120 * 2.0**n, 1800) for n in range(failures + 1)]
    await solves.finish(curve=CURVE)
    assert solver.report() == {"failures": failures, "last_error": None, "next_try_s": None}
    assert solver.table is not None
    assert solver.sla_capacity.curve == CURVE
    assert not solver.in_progress


async def test_an_unforeseen_error_is_a_failure_like_any_other(solves: Solves) -> None:
    solver = BackgroundSolver(SLA, lambda: None, Pauses())
    solver.solve(REQUEST, SLA)
    await asyncio.sleep(0)
    await solves.finish(MemoryError())
    assert (solver.report()["last_error"], solver.failures) == ("MemoryError", 1)
    assert solver.in_progress
    await solver.close()


async def test_what_has_no_solution_is_not_tried_again(solves: Solves) -> None:
    pauses = Pauses()
    solver = BackgroundSolver(SLA, lambda: None, pauses)
    solver.solve(REQUEST, SLA)
    await asyncio.sleep(0)
    await solves.finish(InfeasibleError("needs energy"))
    assert solver.report() == {"failures": 1, "last_error": "needs energy", "next_try_s": None}
    assert (solver.in_progress, pauses.seconds) == (False, [])


async def test_another_request_ends_the_pause(solves: Solves) -> None:
    solver = BackgroundSolver(SLA, lambda: None, Pauses())
    solver.solve(REQUEST, SLA)
    await asyncio.sleep(0)
    await solves.finish(ChildError("killed"))
    solver.solve(OTHER, SLA)
    assert solver.report()["last_error"] is None
    await asyncio.sleep(0)
    await solves.finish()
    assert (solves.requests, solver.in_progress) == ([REQUEST, OTHER], False)


async def test_a_smaller_capacity_counts_until_the_new_curve_is_solved(solves: Solves) -> None:
    solver = BackgroundSolver(SLA, lambda: None)
    solver.reduce_capacity(0.5)  # there is nothing to reduce yet
    solver.solve(REQUEST, SLA)
    await asyncio.sleep(0)
    await solves.finish(curve=CURVE)
    for factor, rate_per_s in ((0.5, 50.0), (2.0, 50.0), (0.9, 45.0)):
        solver.reduce_capacity(factor)
        assert solver.sla_capacity.curve == replace(CURVE, sla_rate_per_s=rate_per_s)
    solver.solve(OTHER, SLA)
    await asyncio.sleep(0)
    await solves.finish(curve=CURVE)
    assert solver.sla_capacity.curve == CURVE


async def test_closing_cancels_an_unfinished_request(solves: Solves) -> None:
    solver = BackgroundSolver(SLA, lambda: None)
    solver.solve(REQUEST, SLA)
    await asyncio.sleep(0)
    await solver.close()
    assert solves.cancelled == [REQUEST]
