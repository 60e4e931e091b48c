"""Policy tables and service curves solved aside."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deployments import solver
from deployments.solver import Question
from policy.profile import Profile
from policy.service_curve import solve_service_curve
from policy.table import ServiceLevelObjective, Weights, solve_table
from sojourn.errors import InfeasibleError

PROFILE = Profile("m", "d", 1.0 + 0.5 * np.arange(1, 5), energy_mj=np.arange(2.0, 6.0))
SLA = ServiceLevelObjective(9.5, 99.0)
QUESTION = Question(PROFILE, Weights(1.0, 2.0), SLA, waiting_room=8)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_folder", lambda: tmp_path)


async def test_gives_what_solving_here_would() -> None:
    answer = await solver.solve_aside(QUESTION)
    assert answer.table == solve_table(PROFILE, QUESTION.objective)
    assert answer.curve == solve_service_curve(PROFILE, SLA, 8)


async def test_no_rate_that_meets_the_sla_is_an_answer() -> None:
    answer = await solver.solve_aside(replace(QUESTION, sla=ServiceLevelObjective(1.4, 99.0)))
    assert answer.curve is None
    assert answer.table == solve_table(PROFILE, QUESTION.objective)


async def test_the_next_replica_finds_the_answer_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = await solver.solve_aside(QUESTION)
    monkeypatch.setattr(solver.sys, "executable", "/none")
    assert await solver.solve_aside(QUESTION) == answer
    for other in (
        replace(QUESTION, objective=Weights(1.0, 3.0)),
        replace(QUESTION, sla=ServiceLevelObjective(9.5, 98.0)),
        replace(QUESTION, waiting_room=9),
    ):
        with pytest.raises(FileNotFoundError):
            await solver.solve_aside(other)


async def test_a_changed_sla_leaves_a_table_that_does_not_depend_on_it(tmp_path: Path) -> None:
    await solver.solve_aside(QUESTION)
    table = tmp_path / QUESTION.table_name
    before = table.stat()
    await solver.solve_aside(replace(QUESTION, sla=ServiceLevelObjective(9.5, 98.0)))
    assert table.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("torn", [QUESTION.table_name, QUESTION.curve_name])
async def test_a_torn_file_is_solved_anew(tmp_path: Path, torn: str) -> None:
    answer = await solver.solve_aside(QUESTION)
    path = tmp_path / torn
    path.write_text(path.read_text()[:50])
    assert await solver.solve_aside(QUESTION) == answer


async def test_what_cannot_be_solved_is_said_in_one_line() -> None:
    without_energy = Profile("m", "d", PROFILE.latency_ms)
    with pytest.raises(InfeasibleError, match="energy"):
        await solver.solve_aside(replace(QUESTION, profile=without_energy))


@pytest.mark.parametrize("objective", [QUESTION.objective, ServiceLevelObjective(8.0, 95.0)])
def test_a_question_goes_through_its_dict(objective: Weights | ServiceLevelObjective) -> None:
    question = replace(QUESTION, objective=objective)
    assert Question.from_dict(question.to_dict()).same_as(question)


def test_until_then_the_device_starts_when_it_is_free() -> None:
    table = solver.work_conserving_table(PROFILE, Weights())
    for rate in (0.0, 10.0, 1e6):
        assert table.lookup(rate).control_limit == 1


def test_an_sla_below_one_batch_is_refused_at_once() -> None:
    with pytest.raises(InfeasibleError, match=r"less than a batch of one takes \(1.5 ms\)"):
        solver.work_conserving_table(PROFILE, ServiceLevelObjective(1.4, 99.0))
