"""No other user can have a say in what lies in a private folder."""

import os
import stat
from pathlib import Path

import pytest

from deployments.modelstore.private_folder import make_private


def test_a_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = make_private(tmp_path / "a" / "b")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "kept").touch()
    assert make_private(folder) == folder
    assert (folder / "kept").exists()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_one_that_others_could_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="this user alone can write to"):
        make_private(folder)


def test_a_link_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError, match="this user alone"):
        make_private(tmp_path / "link")
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")


def test_one_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_private(tmp_path / "theirs")
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="this user alone"):
        make_private(folder)
