"""Policy tables solved aside."""

from pathlib import Path

import numpy as np
import pytest

from deployments import solver
from policy.profile import Profile
from policy.table import ServiceLevelObjective, Weights, solve_table
from sojourn.errors import InfeasibleError

PROFILE = Profile("m", "d", 1.0 + 0.5 * np.arange(1, 5), energy_mj=np.arange(2.0, 6.0))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_folder", lambda: tmp_path)


async def test_gives_what_solving_here_would(tmp_path: Path) -> None:
    objective = Weights(1.0, 2.0)
    assert await solver.solve_aside(PROFILE, objective) == solve_table(PROFILE, objective)


async def test_the_next_replica_finds_the_table_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = Weights(1.0, 1.0)
    table = await solver.solve_aside(PROFILE, objective)
    monkeypatch.setattr(solver.sys, "executable", "/none")
    assert await solver.solve_aside(PROFILE, objective) == table
    with pytest.raises(FileNotFoundError):
        await solver.solve_aside(PROFILE, Weights(1.0, 3.0))


async def test_a_torn_file_is_solved_anew(tmp_path: Path) -> None:
    objective = Weights(1.0, 1.0)
    table = await solver.solve_aside(PROFILE, objective)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text()[:50])
    assert await solver.solve_aside(PROFILE, objective) == table


async def test_what_cannot_be_solved_is_said_in_one_line() -> None:
    without_energy = Profile("m", "d", PROFILE.latency_ms)
    with pytest.raises(InfeasibleError, match="energy"):
        await solver.solve_aside(without_energy, Weights(1.0, 1.0))


def test_until_then_the_device_starts_when_it_is_free() -> None:
    table = solver.work_conserving_table(PROFILE, Weights())
    for rate in (0.0, 10.0, 1e6):
        assert table.lookup(rate).control_limit == 1


def test_an_sla_below_one_batch_is_refused_at_once() -> None:
    with pytest.raises(InfeasibleError, match=r"less than a batch of one takes \(1.5 ms\)"):
        solver.work_conserving_table(PROFILE, ServiceLevelObjective(1.4, 99.0))
