"""The host tier: one sealed memory file (memfd) per blob, which clients map.

A filled file is sealed: nobody, including the manager, can change its bytes or size. It lives as
long as any process has it open or mapped, so a client that outlives the manager keeps its weights.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from deployments.modelstore.names import Blob

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class HostMemory:
    """The blobs in host memory."""

    def __init__(self) -> None:
        self._descriptors: dict[Blob, int] = {}

    @contextmanager
    def fill(self, blob: Blob) -> Iterator[int]:
        """Create a memory file for a blob's bytes. It is sealed on success and freed on error.

        Write to it with `write_at`, which is cheaper than mapping fresh memory.
        """
        name = f"sojourn:{blob.sha256}"
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, blob.size_bytes)
            yield descriptor
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptors[blob] = descriptor

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
