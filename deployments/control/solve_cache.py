"""Solutions kept on disk, so that the next replica with the same model and SLA need not solve.

A file's name has a hash of what was solved *and* of the code: the sources of the mathematics and
the versions of its libraries. So changed code never finds what older code computed. The folder is
the user's own; the files used longest ago leave it first.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import policy
from deployments.modelstore.private_folder import make_private

logger = logging.getLogger("sojourn.policy")

#: The files together: a table has some 100 kB.
MAX_BYTES = 64 << 20
#: Libraries that the result depends on.
_LIBRARIES = ("numpy", "scipy", "numba")


class SolveCache:
    """Solutions in a folder, a JSON file for each, for the `code` that computes them.

    The files used longest ago are deleted when all of them exceed `max_bytes`.
    """

    def __init__(self, folder: Path, code: str | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self._code = code_digest() if code is None else code
        self._max_bytes = max_bytes

    def load(self, name: str) -> Any:
        """Return the stored solution `name`; raise `KeyError` if it is missing or damaged."""
        path = self.path(name)
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise KeyError(name) from error
        with contextlib.suppress(OSError):
            os.utime(path)
        return content

    def store(self, name: str, content: Any) -> None:
        """Store a solution atomically, since another replica may be reading it; then make room.

        `OSError`: the file cannot be written.
        """
        path = self.path(name)
        temporary = path.with_suffix(f".{os.getpid()}")
        try:
            temporary.write_text(json.dumps(content))
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self._evict(kept=path)

    def path(self, name: str) -> Path:
        """Return the file of a solution that this code computes."""
        return self.folder / f"{self._code[:16]}-{name}.json"

    def _evict(self, kept: Path) -> None:
        """Delete the files used longest ago, but not `kept`, until the rest is small enough."""
        files = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another process may have deleted it
                found = path.stat()
                files.append((found.st_mtime_ns, found.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._max_bytes:
                return
            if path != kept:
                path.unlink(missing_ok=True)
                total -= size


@functools.cache
def cache_folder() -> Path:
    """Create and return this user's cache folder.

    It is ``sojourn/tables`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. Where that cannot be, or is not
    this user's alone, it is a temporary folder of this process.
    """
    try:
        given = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification has relative paths ignored.
        home = Path(given) if given.startswith("/") else Path.home() / ".cache"
        return make_private(home / "sojourn" / "tables")
    except (OSError, RuntimeError) as error:
        logger.warning("solved tables are kept by this process only: %s", error)
        return Path(tempfile.mkdtemp(prefix="sojourn-tables-"))


@functools.cache
def code_digest() -> str:
    """Return a hash of what computes solutions: our sources and the libraries' versions."""
    root = Path(policy.__file__).parent
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES]
    return digest(root, root.rglob("*.py"), [platform.python_version(), *versions])


def digest(root: Path, sources: Iterable[Path], versions: Iterable[str]) -> str:
    """Return a hash of files, by their path below `root` and content, and of versions."""
    result = hashlib.sha256("\n".join(versions).encode())
    for path in sorted(sources):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        result.update(f"{path.relative_to(root)} {content}\n".encode())
    return result.hexdigest()
