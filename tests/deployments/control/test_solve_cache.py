"""Solutions kept on disk: found again by the code that computed them, and by nobody else's."""

import importlib.metadata
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.control import solve_cache
from deployments.control.solve_cache import SolveCache, cache_folder, code_digest, digest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make `tmp_path` the user's cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_folder.cache_clear()
    yield tmp_path
    cache_folder.cache_clear()


@pytest.mark.parametrize("content", [None, {"rates": [1.0, 0.1 + 0.2], "limit": 4}])
def test_a_stored_solution_is_loaded_by_the_code_that_computed_it(
    tmp_path: Path, content: object
) -> None:
    SolveCache(tmp_path, code="older").store("table", content)
    assert SolveCache(tmp_path, code="older").load("table") == content
    for cache, name in (
        (SolveCache(tmp_path, "newer"), "table"),
        (SolveCache(tmp_path, "older"), "curve"),
    ):
        with pytest.raises(KeyError):
            cache.load(name)


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
        *("table.py", "table_solving.py", "solvers/exact.py", "load_lateness.py"),
    }
    assert f"scipy {importlib.metadata.version('scipy')}" in versions


def test_the_files_used_longest_ago_leave_first(tmp_path: Path) -> None:
    big = SolveCache(tmp_path)
    paths = [big.path(name) for name in ("old", "table", "curve")]
    for age, name in enumerate(("old", "table", "curve"), 1):
        big.store(name, "x" * 98)
        os.utime(paths[age - 1], (age, age))
    big.load("table")  # now the curve is the one used longest ago but one
    SolveCache(tmp_path, max_bytes=200).store("table", "x" * 98)
    assert [path.exists() for path in paths] == [False, True, True]
    SolveCache(tmp_path, max_bytes=0).store("table", "x" * 98)
    assert [path.exists() for path in paths] == [False, True, False]


def test_the_folder_is_the_users_own(home: Path) -> None:
    folder = cache_folder()
    assert folder == home / "sojourn/tables"
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
