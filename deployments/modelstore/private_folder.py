"""A folder that only this user can read and write, below a folder that others may write to."""

import os
import stat
from pathlib import Path


def make_private(folder: Path) -> Path:
    """Create `folder` if necessary and return it.

    `OSError` if it cannot be made or written, or if another user made it, or could have put
    something there.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not mine or found.st_mode & 0o022:
        raise PermissionError(f"{folder}: must be a folder that this user alone can write to")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")
    return folder
