import os
import stat

import pytest

from deployments.modelstore.private_folder import make_private


def test_a_folder_is_made_for_this_user_alone(tmp_path):
    folder = make_private(tmp_path / "a" / "b")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "kept").touch()
    assert make_private(folder) == folder
    assert (folder / "kept").exists()


def test_what_others_could_write_or_made_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "open"
    folder.mkdir()
    (tmp_path / "link").symlink_to(make_private(tmp_path / "mine"))
    for mode in (0o770, 0o702, 0o777):
        folder.chmod(mode)
        with pytest.raises(PermissionError, match="this user alone can write to"):
            make_private(folder)
    with pytest.raises(PermissionError, match="this user alone"):
        make_private(tmp_path / "link")
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="this user alone"):
        make_private(tmp_path / "mine")
