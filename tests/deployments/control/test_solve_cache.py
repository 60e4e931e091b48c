"""Solutions kept on disk: found again by the code that computed them, and by nobody else's."""

import importlib.metadata
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deployments.control import solve_cache
from deployments.control.solve_cache import SolveCache, cache_folder, code_digest, digest
from deployments.control.solve_request import SolveRequest, SolveResult
from deployments.control.table_solver import work_conserving_table
from policy.errors import InvalidInputError
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile

PROFILE = Profile("m", "d", 1.0 + 0.5 * np.arange(1, 5), energy_mj=np.arange(2.0, 6.0))
SLA = ServiceLevelObjective(9.5, 99.0)
REQUEST = SolveRequest(PROFILE, Weights(1.0, 2.0), SLA, waiting_room=8)
CURVE = LoadLatenessCurve(10.0, tuple(np.linspace(0, 1, 16).tolist()))
TABLE = work_conserving_table(PROFILE, REQUEST.objective)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make `tmp_path` the user's cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_folder.cache_clear()
    yield tmp_path
    cache_folder.cache_clear()


@pytest.mark.parametrize("curve", [None, CURVE])
def test_a_stored_result_is_loaded(tmp_path: Path, curve: LoadLatenessCurve | None) -> None:
    cache = SolveCache(tmp_path)
    cache.store_table(REQUEST, TABLE)
    assert cache.load_table(REQUEST) == TABLE
    with pytest.raises(InvalidInputError, match="curve: not stored"):
        cache.load(REQUEST)
    cache.store_curve(REQUEST, curve)
    assert cache.load(REQUEST) == SolveResult(TABLE, curve)


def test_changed_code_does_not_find_what_older_code_computed(tmp_path: Path) -> None:
    SolveCache(tmp_path, code="older").store_table(REQUEST, TABLE)
    with pytest.raises(InvalidInputError):
        SolveCache(tmp_path, code="newer").load_table(REQUEST)
    assert SolveCache(tmp_path, code="older").load_table(REQUEST) == TABLE


def test_the_digest_follows_from_every_source_its_place_and_every_version(tmp_path: Path) -> None:
    def of(content: str, name: str, version: str) -> str:
        path = tmp_path / name
        path.write_text(content)
        found = digest(tmp_path, [path], [version])
        path.unlink()
        return found

    assert of("x = 1", "a.py", "numpy 2") == of("x = 1", "a.py", "numpy 2")
    cases = [("x = 1", "a.py", "1"), ("x = 2", "a.py", "1"), ("x = 1", "b.py", "1")]
    assert len({of(*case) for case in [*cases, ("x = 1", "a.py", "2")]}) == 4


def test_the_digest_covers_the_mathematics_and_its_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[set[str], list[str]]] = []

    def record(root: Path, sources: list[Path], versions: list[str]) -> str:
        seen.append(({str(path.relative_to(root)) for path in sources}, versions))
        return "0"

    monkeypatch.setattr(solve_cache, "digest", record)
    code_digest.__wrapped__()
    ((sources, versions),) = seen
    assert sources >= {
        *("policy/table.py", "policy/table_solving.py"),
        *("policy/solvers/exact.py", "policy/load_lateness.py"),
    }
    assert f"scipy {importlib.metadata.version('scipy')}" in versions


def test_the_files_used_longest_ago_leave_first(tmp_path: Path) -> None:
    cache = SolveCache(tmp_path, max_bytes=0)
    big = SolveCache(tmp_path)
    big.store_curve(REQUEST, CURVE)
    big.store_table(REQUEST, TABLE)
    table, curve = cache.path(REQUEST.table_name), cache.path(REQUEST.curve_name)
    size = table.stat().st_size + curve.stat().st_size
    foreign = tmp_path / "older-version.json"
    foreign.write_text("x" * size)
    os.utime(foreign, (1, 1))
    os.utime(table, (2, 2))
    os.utime(curve, (3, 3))
    big.load_table(REQUEST)  # now the curve is the one used longest ago
    SolveCache(tmp_path, max_bytes=size).store_table(REQUEST, TABLE)
    assert (foreign.exists(), table.exists(), curve.exists()) == (False, True, True)
    cache.store_table(REQUEST, TABLE)
    assert (table.exists(), curve.exists()) == (True, False)


def test_the_folder_is_the_users_own(home: Path) -> None:
    folder = cache_folder()
    assert folder == home / "sojourn/tables"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_others_may_enter_is_closed_to_them(home: Path) -> None:
    folder = home / "sojourn/tables"
    folder.mkdir(parents=True, mode=0o755)
    assert cache_folder() == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("planted", ["link", "file", "another user's"])
def test_what_somebody_else_has_put_there_is_not_used(
    home: Path, planted: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = home / "sojourn/tables"
    folder.parent.mkdir(parents=True)
    if planted == "link":
        (home / "elsewhere").mkdir()
        folder.symlink_to(home / "elsewhere")
    elif planted == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    found = cache_folder()
    assert found != folder
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert "kept by this process only" in caplog.text


def test_a_relative_cache_home_is_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(home))
    assert cache_folder() == home / ".cache/sojourn/tables"
