"""The host tier: one sealed memory file (memfd) per blob, which clients map.

Once filled, a file is sealed: nobody, the manager included, can change its bytes or its size. It
lives as long as any process has it open or mapped, so a client that outlives the manager keeps its
weights, and the next manager can take them over from there.
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

    It is made when the manager starts, and looks then for memory that processes still have of an
    earlier manager, however that ended.

    Parameters
    ----------
    store : Path, optional
        The store's folder. Memory of other stores' managers is left alone.

    Attributes
    ----------
    taken_over : int
        Blobs whose memory an earlier manager made.
    """

    def __init__(self, store: Path | None = None) -> None:
        path = b"" if store is None else os.fsencode(store.resolve())
        self._store = hashlib.sha256(path).hexdigest()[:16]
        self._descriptors: dict[Blob, int] = {}
        self._left = {name for _, name in _held_by_others()}
        self.taken_over = 0

    @contextmanager
    def fill(self, blob: Blob) -> Iterator[int]:
        """Provide a memory file for a blob's bytes. On success it is sealed; on error, freed.

        Write to it with `write_at`: to map fresh memory costs more than to copy into it.

        Raises
        ------
        OSError
            There is no memory.
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
        """Take over a blob that a process of this user still has from an earlier manager.

        Its digest is checked after its seals, so nobody can change what was checked. Processes in
        other containers are not seen.
        """
        if self.file_name(blob) not in self._left:
            return False
        for link, name in _held_by_others():
            if name != self.file_name(blob):
                continue
            try:
                descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # its process ended
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
        """Return the blob's descriptor; it stays this object's."""
        return self._descriptors[blob]

    def drop(self, blob: Blob) -> None:
        """Free a blob, as far as no client still has it mapped."""
        os.close(self._descriptors.pop(blob))

    def close(self) -> None:
        """Free all blobs."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` to a file at an offset.

    Raises
    ------
    OSError
        There is no memory.
    """
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset + done)


def is_sealed(descriptor: int) -> bool:
    """Tell whether nobody can change what the descriptor refers to."""
    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS)
    except OSError:
        return False


def _held_by_others() -> Iterator[tuple[Path, str]]:
    """Yield the memory files that other processes of this user have open, and their names."""
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        with suppress(OSError):  # it ended, or is not this user's
            for link in (process / "fd").iterdir():
                with suppress(FileNotFoundError):  # it was closed
                    if match := _MEMORY_FILE.fullmatch(os.readlink(link)):
                        yield link, match[1]


def _sha256(descriptor: int) -> str:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()
