"""The host tier: one sealed memory file (memfd) per blob, which clients map.

Once filled, a file is sealed: nobody, the manager included, can change its bytes or its size. It
lives as long as any process has it open or mapped, so a client that outlives the manager keeps its
weights.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from modelstore.names import Blob

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class HostMemory:
    """The blobs in host memory, by digest."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    @contextmanager
    def fill(self, blob: Blob) -> Iterator[memoryview]:
        """Provide a buffer for a blob's bytes. On success they are sealed; on error, freed.

        The buffer is a whole number of pages, because a disk is read in whole sectors.

        Raises
        ------
        OSError
            There is no memory.
        """
        descriptor = os.memfd_create(
            f"sojourn:{blob.sha256[:12]}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        )
        try:
            room_bytes = -(-blob.size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            os.ftruncate(descriptor, room_bytes)
            with mmap.mmap(descriptor, room_bytes) as mapping, memoryview(mapping) as view:
                yield view
            os.ftruncate(descriptor, blob.size_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptors[blob.sha256] = descriptor

    def descriptor(self, blob: Blob) -> int:
        """Return the blob's descriptor; it stays this object's."""
        return self._descriptors[blob.sha256]

    def drop(self, blob: Blob) -> None:
        """Free a blob, as far as no client still has it mapped."""
        os.close(self._descriptors.pop(blob.sha256))

    def close(self) -> None:
        """Free all blobs."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def is_sealed(descriptor: int) -> bool:
    """Tell whether nobody can change what the descriptor refers to."""
    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS)
    except OSError:
        return False
