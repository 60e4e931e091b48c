"""Policy tables and service curves solved aside."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deployments.control import table_solver as solver
from deployments.control.table_solver import SolveRequest
from policy.errors import InfeasibleError
from policy.load_lateness import solve_load_lateness_curve
from policy.profile import Profile
from policy.table import ServiceLevelObjective, Weights, solve_table

PROFILE = Profile("m", "d", 1.0 + 0.5 * np.arange(1, 5), energy_mj=np.arange(2.0, 6.0))
SLA = ServiceLevelObjective(9.5, 99.0)
QUESTION = SolveRequest(PROFILE, Weights(1.0, 2.0), SLA, waiting_room=8)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_folder", lambda: tmp_path)


async def test_gives_what_solving_here_would() -> None:
    result = await solver.solve_in_subprocess(QUESTION)
    assert result.table == solve_table(PROFILE, QUESTION.objective)
    assert result.curve == solve_load_lateness_curve(PROFILE, SLA, 8)


async def test_no_rate_that_meets_the_sla_is_an_answer() -> None:
    result = await solver.solve_in_subprocess(
        replace(QUESTION, sla=ServiceLevelObjective(1.4, 99.0))
    )
    assert result.curve is None
    assert result.table == solve_table(PROFILE, QUESTION.objective)


async def test_the_next_replica_finds_the_answer_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    result = await solver.solve_in_subprocess(QUESTION)
    monkeypatch.setattr(sys, "executable", "/none")
    assert await solver.solve_in_subprocess(QUESTION) == result
    for other in (
        replace(QUESTION, objective=Weights(1.0, 3.0)),
        replace(QUESTION, sla=ServiceLevelObjective(9.5, 98.0)),
        replace(QUESTION, waiting_room=9),
    ):
        with pytest.raises(FileNotFoundError):
            await solver.solve_in_subprocess(other)


async def test_a_changed_sla_leaves_a_table_that_does_not_depend_on_it(tmp_path: Path) -> None:
    await solver.solve_in_subprocess(QUESTION)
    table = tmp_path / QUESTION.table_name
    before = table.stat()
    await solver.solve_in_subprocess(replace(QUESTION, sla=ServiceLevelObjective(9.5, 98.0)))
    assert table.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("torn", [QUESTION.table_name, QUESTION.curve_name])
async def test_a_torn_file_is_solved_anew(tmp_path: Path, torn: str) -> None:
    result = await solver.solve_in_subprocess(QUESTION)
    path = tmp_path / torn
    path.write_text(path.read_text()[:50])
    assert await solver.solve_in_subprocess(QUESTION) == result


async def test_what_cannot_be_solved_is_said_in_one_line() -> None:
    without_energy = Profile("m", "d", PROFILE.latency_ms)
    with pytest.raises(InfeasibleError, match="energy"):
        await solver.solve_in_subprocess(replace(QUESTION, profile=without_energy))


@pytest.mark.parametrize("objective", [QUESTION.objective, ServiceLevelObjective(8.0, 95.0)])
def test_a_question_goes_through_its_dict(objective: Weights | ServiceLevelObjective) -> None:
    request = replace(QUESTION, objective=objective)
    assert SolveRequest.from_dict(request.to_dict()).same_as(request)


def test_until_then_the_device_starts_when_it_is_free() -> None:
    table = solver.work_conserving_table(PROFILE, Weights())
    for rate in (0.0, 10.0, 1e6):
        assert table.lookup(rate).control_limit == 1


def test_an_sla_below_one_batch_is_refused_at_once() -> None:
    with pytest.raises(InfeasibleError, match=r"less than a batch of one takes \(1.5 ms\)"):
        solver.work_conserving_table(PROFILE, ServiceLevelObjective(1.4, 99.0))
