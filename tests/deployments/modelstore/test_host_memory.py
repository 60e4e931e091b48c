import hashlib
import mmap
import os

import pytest

from deployments.modelstore.host_memory import HostMemory, write_at
from deployments.modelstore.names import Blob

CONTENT = b"weights" * 1000
BLOB = Blob(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


def test_filled_memory_is_sealed_and_has_the_blobs_size():
    memory = HostMemory()
    with memory.fill(BLOB) as descriptor:
        write_at(descriptor, CONTENT, 0)
    descriptor = memory.descriptor(BLOB)
    assert os.fstat(descriptor).st_size == len(CONTENT)
    assert os.pread(descriptor, len(CONTENT), 0) == CONTENT
    for change in (
        lambda: os.pwrite(descriptor, b"x", 100),
        lambda: os.ftruncate(descriptor, 10),
        lambda: mmap.mmap(descriptor, len(CONTENT)),
    ):
        with pytest.raises(PermissionError):
            change()
    memory.drop(BLOB)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
