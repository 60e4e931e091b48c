"""Ray's token: made once, and readable by nobody else."""

import stat
from pathlib import Path

import pytest

from deployments.errors import StartError
from deployments.local.ray_token import ray_access, ray_headers


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `tmp_path` the user's home, with none of Ray's settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_is_made_where_ray_looks_for_it(home: Path) -> None:
    assert ray_access() == {"RAY_AUTH_MODE": "token"}
    path = home / ".ray/auth_token"
    token = path.read_text()
    assert (len(token), mode(path), mode(path.parent)) == (64, 0o600, 0o700)
    assert ray_headers() == {"Authorization": f"Bearer {token}"}
    assert path.read_text() == token


def test_a_token_that_others_may_read_is_closed_to_them(home: Path) -> None:
    path = home / ".ray/auth_token"
    path.parent.mkdir()
    path.write_text("made by Ray\n")
    path.chmod(0o644)
    assert ray_headers() == {"Authorization": "Bearer made by Ray"}
    assert (path.read_text(), mode(path)) == ("made by Ray\n", 0o600)


def test_the_users_own_token_is_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    assert ray_headers() == {"Authorization": "Bearer mine"}
    assert not (home / ".ray").exists()


def test_no_token_is_sent_where_the_user_has_turned_it_off(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert ray_headers() == {}
    assert not (home / ".ray").exists()


def test_a_token_that_cannot_be_written_is_reported_in_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "file/token"))
    with pytest.raises(StartError, match="set RAY_AUTH_TOKEN_PATH to another file"):
        ray_access()
