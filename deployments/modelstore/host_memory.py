"""The host tier: one sealed memory file (memfd) per blob, which clients map.

A filled file is sealed: nobody, including the manager, can change its bytes or size. It lives as
long as any process has it open or mapped. A client that outlives the manager keeps its weights, and
the next manager can recover them from there.
"""

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deployments.modelstore.names import Blob

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_MEMORY_FILE = re.compile(r"/memfd:(sojourn:[0-9a-f:]+) \(deleted\)", re.ASCII)


class HostMemory:
    """The blobs in host memory.

    At its creation it looks for memory that other processes still hold from an earlier manager of
    the same store's folder; `taken_over` counts the blobs adopted from there.
    """

    def __init__(self, store: Path | None = None) -> None:
        path = b"" if store is None else os.fsencode(store.resolve())
        self._store = hashlib.sha256(path).hexdigest()[:16]
        self._descriptors: dict[Blob, int] = {}
        self._left = {name for _, name in _held_by_others()}
        self.taken_over = 0

    @contextmanager
    def fill(self, blob: Blob) -> Iterator[int]:
        """Create a memory file for a blob's bytes. It is sealed on success and freed on error.

        Write to it with `write_at`, which is cheaper than mapping fresh memory.
        """
        descriptor = os.memfd_create(self.file_name(blob), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, blob.size_bytes)
            yield descriptor
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptors[blob] = descriptor

    def file_name(self, blob: Blob) -> str:
        """Return the name of a blob's memory file, by which the next manager finds it."""
        return f"sojourn:{self._store}:{blob.sha256}"

    def take_over(self, blob: Blob) -> bool:
        """Adopt a blob that a process of this user still has from an earlier manager.

        Its digest is checked after its seals, so the checked bytes cannot change. Processes in
        other containers are not visible.
        """
        if self.file_name(blob) not in self._left:
            return False
        for link, name in _held_by_others():
            if name != self.file_name(blob):
                continue
            try:
                descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # the process ended
                continue
            if (
                is_sealed(descriptor)
                and os.fstat(descriptor).st_size == blob.size_bytes
                and _sha256(descriptor) == blob.sha256
            ):
                self._descriptors[blob] = descriptor
                self.taken_over += 1
                return True
            os.close(descriptor)
        return False

    def descriptor(self, blob: Blob) -> int:
        return self._descriptors[blob]

    def drop(self, blob: Blob) -> None:
        """Free a blob; clients that have it mapped keep it."""
        os.close(self._descriptors.pop(blob))

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` to a file at an offset; `OSError` if there is no memory."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset + done)


def is_sealed(descriptor: int) -> bool:
    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS)
    except OSError:
        return False


def _held_by_others() -> Iterator[tuple[Path, str]]:
    """Yield the memory files that other processes of this user have open, with their names."""
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        with suppress(OSError):  # the process ended or is not this user's
            for link in (process / "fd").iterdir():
                with suppress(FileNotFoundError):  # the file was closed
                    if match := _MEMORY_FILE.fullmatch(os.readlink(link)):
                        yield link, match[1]


def _sha256(descriptor: int) -> str:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()
