"""The copies between tiers: a store that stops does not wait for the rest of a file."""

import hashlib
import os
import threading

import numpy as np
import pytest
import safetensors.numpy

from deployments.modelstore.core.actions import Copy, Fault, Tier
from deployments.modelstore.errors import FetchError, StoreError, UnknownModelError
from deployments.modelstore.files.disk import Disk
from deployments.modelstore.host_memory import HostMemory
from deployments.modelstore.manager.copies import Copier, CopyError
from deployments.modelstore.names import Blob, ModelName

CONTENT = safetensors.numpy.save({"a": np.random.default_rng(1).random(20_000)})
BLOB = Blob(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
NAME = ModelName("pytorch", "m", "1")
FILE = "model.safetensors"
HALF = len(CONTENT) // 2


class Remote:
    """Sends a file in two halves, and calls `between` after the first.

    `faults` says which models it sends something else of: an error, or other bytes.
    """

    def __init__(self, **faults):
        self.between, self.faults, self.read_names = (lambda: None), faults, []

    def size_bytes(self, name, file):
        return len(CONTENT)

    def read(self, name, file, offset):
        self.read_names.append(name.name)
        fault = self.faults.get(name.name)
        if isinstance(fault, StoreError):
            raise fault
        if fault is not None:
            yield fault[offset:]
            return
        if offset < HALF:
            yield CONTENT[offset:HALF]
            self.between()
            offset = HALF
        yield CONTENT[offset:]


def intact(disk):
    memory = HostMemory()
    with memory.fill(BLOB) as target:
        disk.read(BLOB, target)
    memory.close()
    return True


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    yield disk
    disk.close()


@pytest.mark.parametrize("target", [Tier.DISK, Tier.HOST])
def test_a_download_ends_with_its_piece_when_the_store_stops(tmp_path, disk, target):
    stopped, memory, remote = threading.Event(), HostMemory(), Remote()
    remote.between = stopped.set
    copier = Copier(remote, disk, memory, stopped=stopped)
    with pytest.raises(CopyError, match="stopped") as caught:
        copier.copy(Copy(BLOB, Tier.REMOTE, target), [(NAME, FILE)])
    assert caught.value.fault is Fault.OTHER
    assert not list((tmp_path / "partial").iterdir())
    with pytest.raises(KeyError):
        memory.descriptor(BLOB)


def test_a_read_of_the_disk_ends_with_its_piece_when_the_store_stops(disk):
    stopped, memory = threading.Event(), HostMemory()
    copier = Copier(Remote(), disk, memory, stopped=stopped)
    copier.copy(Copy(BLOB, Tier.REMOTE, Tier.DISK), [(NAME, FILE)])
    stopped.set()
    with pytest.raises(CopyError, match="stopped"):
        copier.copy(Copy(BLOB, Tier.DISK, Tier.HOST), [(NAME, FILE)])
    assert intact(disk)


@pytest.mark.parametrize("target", [Tier.DISK, Tier.HOST])
def test_a_broken_download_is_resumed_as_long_as_more_of_it_comes(disk, target):
    remote, memory = Remote(), HostMemory()

    def break_off():
        raise FetchError("the network is gone")

    remote.between = break_off
    copier = Copier(remote, disk, memory)
    copier.copy(Copy(BLOB, Tier.REMOTE, target), [(NAME, FILE)])
    assert remote.read_names == [NAME.name] * 2
    if target is Tier.DISK:
        assert intact(disk)
    else:
        assert os.pread(memory.descriptor(BLOB), len(CONTENT), 0) == CONTENT
        memory.close()


REPLACED = bytes(len(CONTENT))
OTHERS = [(ModelName("pytorch", name, "1"), FILE) for name in ("retired", "replaced", "silent")]
RETIRED = UnknownModelError("retired: the remote has no such file")


@pytest.mark.parametrize("target", [Tier.DISK, Tier.HOST])
@pytest.mark.parametrize("passed_by", [OTHERS[:1], OTHERS[1:2], OTHERS[:2]])
def test_models_that_no_longer_have_a_file_are_passed_by(disk, target, passed_by):
    remote, memory = Remote(retired=RETIRED, replaced=REPLACED), HostMemory()
    copier = Copier(remote, disk, memory)
    order = Copy(BLOB, Tier.REMOTE, target)
    copier.copy(order, [*passed_by, (NAME, FILE), *OTHERS])
    if target is Tier.DISK:
        assert intact(disk)
    else:
        assert os.pread(memory.descriptor(BLOB), len(CONTENT), 0) == CONTENT
        memory.close()
    assert remote.read_names == [*(name.name for name, _ in passed_by), NAME.name]


@pytest.mark.parametrize(
    ("origins", "error", "read"),
    [
        (OTHERS[:2], "no such file", ["retired", "replaced"]),
        (OTHERS[1::-1], "digest", ["replaced", "retired"]),
        # A remote that fails would fail again.
        ([OTHERS[2], (NAME, FILE)], "timed out", ["silent"]),
        ([], "no model", []),
    ],
)
def test_a_file_that_no_model_has_is_the_error_of_the_first(disk, origins, error, read):
    remote = Remote(retired=RETIRED, replaced=REPLACED, silent=FetchError("timed out"))
    with pytest.raises(CopyError, match=error) as caught:
        Copier(remote, disk, HostMemory()).copy(Copy(BLOB, Tier.REMOTE, Tier.DISK), origins)
    assert caught.value.fault is Fault.OTHER
    assert remote.read_names == read
