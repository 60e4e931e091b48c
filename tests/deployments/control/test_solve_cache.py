import importlib.metadata
import os
import stat
from unittest import mock

import pytest

from deployments.control import solve_cache
from deployments.control.solve_cache import SolveCache, cache_folder, code_digest, digest


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_folder.cache_clear()
    yield tmp_path
    cache_folder.cache_clear()


@pytest.mark.parametrize("content", [None, {"rates": [1.0, 0.1 + 0.2], "limit": 4}])
def test_a_stored_solution_is_loaded_by_the_code_that_computed_it(tmp_path, content):
    SolveCache(tmp_path, code="older").store("table", content)
    assert SolveCache(tmp_path, code="older").load("table") == content
    for code, name in (("newer", "table"), ("older", "curve")):
        with pytest.raises(KeyError):
            SolveCache(tmp_path, code).load(name)


def test_the_digest_follows_from_every_source_its_place_and_every_version(tmp_path):
    def of(content, name, version):
        path = tmp_path / name
        path.write_text(content)
        found = digest(tmp_path, [path], [version])
        path.unlink()
        return found

    assert of("x = 1", "a.py", "numpy 2") == of("x = 1", "a.py", "numpy 2")
    cases = [("x = 1", "a.py", "1"), ("x = 2", "a.py", "1"), ("x = 1", "b.py", "1")]
    assert len({of(*case) for case in [*cases, ("x = 1", "a.py", "2")]}) == 4


def test_the_digest_covers_the_mathematics_and_its_libraries():
    with mock.patch.object(solve_cache, "digest") as digested:
        code_digest.__wrapped__()
    root, paths, versions = digested.call_args.args
    sources = {str(path.relative_to(root)) for path in paths}
    assert sources >= {"tables/table.py", "tables/solving.py", "solvers/exact.py"}
    assert f"scipy {importlib.metadata.version('scipy')}" in versions


def test_the_files_used_longest_ago_leave_first(tmp_path):
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


@pytest.mark.parametrize("planted", [False, True])
def test_the_folder_is_the_users_own(home, planted):
    folder = home / "sojourn/tables"
    if planted:
        folder.parent.mkdir(parents=True)
        folder.symlink_to(home)
    found = cache_folder()
    assert (found != folder) == planted
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
