"""Policy tables and load-lateness curves solved in a child process."""

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deployments.control import table_solver as solver
from deployments.control.solve_cache import SolveCache
from deployments.control.solve_request import SolveRequest, SolveResult
from deployments.errors import ChildError
from policy.errors import InfeasibleError
from policy.front import FrontCosts
from policy.load_lateness import solve_load_lateness_curve
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.table_solving import solve_table

PROFILE = Profile("m", "d", 1.0 + 0.5 * np.arange(1, 5), energy_mj=np.arange(2.0, 6.0))
SLA = ServiceLevelObjective(9.5, 99.0)
REQUEST = SolveRequest(PROFILE, Weights(1.0, 2.0), SLA, waiting_room=8)


@pytest.fixture(autouse=True)
def _own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "cache_folder", lambda: tmp_path)


async def solve(request: SolveRequest) -> SolveResult:
    with closing(solver.solver_process()) as child:
        return await solver.solve_in_child(child, request, 60.0)


@pytest.mark.slow
async def test_the_child_process_solves_the_same_as_this_process() -> None:
    result = await solve(REQUEST)
    assert result.table == solve_table(PROFILE, REQUEST.objective)
    assert result.curve == solve_load_lateness_curve(PROFILE, SLA, 8)


@pytest.mark.slow
async def test_a_child_that_has_solved_solves_the_next_request() -> None:
    other = replace(REQUEST, sla=ServiceLevelObjective(9.5, 98.0))
    with closing(solver.solver_process()) as child:
        await solver.solve_in_child(child, REQUEST, 60.0)
        result = await solver.solve_in_child(child, other, 60.0)
    assert result.curve == solve_load_lateness_curve(PROFILE, other.sla, 8)


@pytest.mark.slow
async def test_an_sla_that_no_rate_meets_has_no_curve() -> None:
    result = await solve(replace(REQUEST, sla=ServiceLevelObjective(1.4, 99.0)))
    assert result.curve is None
    assert result.table == solve_table(PROFILE, REQUEST.objective)


@pytest.mark.slow
async def test_the_next_replica_loads_the_stored_result(monkeypatch: pytest.MonkeyPatch) -> None:
    result = await solve(REQUEST)
    monkeypatch.setattr(sys, "executable", "/none")
    assert await solve(REQUEST) == result
    for other in (
        replace(REQUEST, objective=Weights(1.0, 3.0)),
        replace(REQUEST, sla=ServiceLevelObjective(9.5, 98.0)),
        replace(REQUEST, waiting_room=9),
    ):
        with pytest.raises(ChildError, match="did not start"):
            await solve(other)


@pytest.mark.slow
async def test_a_changed_sla_keeps_a_table_that_does_not_depend_on_it(tmp_path: Path) -> None:
    await solve(REQUEST)
    table = SolveCache(tmp_path).path(REQUEST.table_name)
    before = table.stat()
    await solve(replace(REQUEST, sla=ServiceLevelObjective(9.5, 98.0)))
    assert table.stat().st_ino == before.st_ino


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [REQUEST.table_name, REQUEST.curve_name])
async def test_a_damaged_file_is_solved_anew(tmp_path: Path, damaged: str) -> None:
    result = await solve(REQUEST)
    path = SolveCache(tmp_path).path(damaged)
    path.write_text(path.read_text()[:50])
    assert await solve(REQUEST) == result


@pytest.mark.slow
async def test_the_child_process_reports_its_error() -> None:
    without_energy = Profile("m", "d", PROFILE.latency_ms)
    with pytest.raises(InfeasibleError, match="energy"):
        await solve(replace(REQUEST, profile=without_energy))


@pytest.mark.slow
async def test_a_full_disk_costs_the_next_replica_time_but_not_this_one_its_table(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(solver, "cache_folder", lambda: Path("/dev/full"))
    result = await solve(REQUEST)
    assert result.table == solve_table(PROFILE, REQUEST.objective)
    assert "not kept for other replicas" in caplog.text


def test_the_first_table_starts_whenever_the_device_is_free() -> None:
    table = solver.work_conserving_table(PROFILE, Weights())
    for rate in (0.0, 10.0, 1e6):
        assert table.lookup(rate).control_limit == 1


@pytest.mark.parametrize("load", [0.02, 0.3, 0.5, 0.7, 0.85])
def test_the_first_table_leaves_a_front_beside_the_device_time(load: float) -> None:
    front = FrontCosts(0.1, 0.15, shares_cpu=False)
    profile = Profile("m", "d", 0.025 + 0.001 * np.arange(1, 17), front=front)
    rate_per_s = load * profile.capacity_per_s
    policy = solver.work_conserving_table(profile, Weights()).lookup(rate_per_s)
    assert policy.control_limit == 1 or load >= 0.3
    assert evaluate(profile, policy, rate_per_s).mean_response_ms < 5


def test_an_sla_shorter_than_one_batch_is_infeasible() -> None:
    with pytest.raises(InfeasibleError, match=r"less than a batch of one takes \(1.5 ms\)"):
        solver.work_conserving_table(PROFILE, ServiceLevelObjective(1.4, 99.0))
