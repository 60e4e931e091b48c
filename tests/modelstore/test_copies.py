"""The copies between tiers: a store that stops does not wait for the rest of a file."""

import hashlib
import threading

import numpy as np
import pytest
import safetensors.numpy

from modelstore.actions import Copy, Fault, Tier
from modelstore.copies import Copier, CopyError
from modelstore.disk import Disk
from modelstore.host_memory import HostMemory
from modelstore.names import Blob, ModelName

CONTENT = safetensors.numpy.save({"a": np.random.default_rng(1).random(20_000)})
BLOB = Blob(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
NAME = ModelName("pytorch", "m", "1")
FILE = "model.safetensors"
HALF = len(CONTENT) // 2


class Remote:
    """Sends a file in two halves, and calls `between` after the first."""

    def __init__(self):
        self.between = lambda: None

    def size_bytes(self, name, file):
        return len(CONTENT)

    def read(self, name, file, offset):
        if offset < HALF:
            yield CONTENT[offset:HALF]
            self.between()
            offset = HALF
        yield CONTENT[offset:]


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    yield disk
    disk.close()


@pytest.mark.parametrize("target", [Tier.DISK, Tier.HOST])
def test_a_download_ends_with_its_piece_when_the_store_stops(tmp_path, disk, target):
    stopped, memory, remote, done = threading.Event(), HostMemory(), Remote(), []
    remote.between = stopped.set
    copier = Copier(remote, disk, memory, stopped=stopped)
    with pytest.raises(CopyError, match="stopped") as caught:
        copier.copy(Copy(BLOB, Tier.REMOTE, target), NAME, FILE, done.append)
    assert caught.value.fault is Fault.OTHER
    assert [path.stat().st_size for path in (tmp_path / "partial").iterdir()] == (
        [HALF] if target is Tier.DISK else []
    )
    with pytest.raises(KeyError):
        memory.descriptor(BLOB)


def test_a_read_of_the_disk_ends_with_its_piece_when_the_store_stops(disk):
    stopped, memory = threading.Event(), HostMemory()
    copier = Copier(Remote(), disk, memory, stopped=stopped)
    copier.copy(Copy(BLOB, Tier.REMOTE, Tier.DISK), NAME, FILE, lambda done: None)
    stopped.set()
    with pytest.raises(CopyError, match="stopped"):
        copier.copy(Copy(BLOB, Tier.DISK, Tier.HOST), NAME, FILE, lambda done: None)
    assert disk.verify(BLOB)
