"""Memory of a dead manager is taken over only if nobody can have changed it."""

import fcntl
import hashlib
import mmap
import os
import subprocess
import sys

import pytest

from deployments.modelstore.host_memory import HostMemory, is_sealed, write_at
from deployments.modelstore.names import Blob

CONTENT = b"weights" * 1000
BLOB = Blob(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
#: Makes a memory file that looks like a blob's, and keeps it until its input ends.
IMPOSTOR = """
import fcntl, os, sys
name, content, seals = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])
descriptor = os.memfd_create(name, os.MFD_ALLOW_SEALING)
os.write(descriptor, content)
fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
print("ready", flush=True)
sys.stdin.read()
"""
ALL = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def test_filled_memory_is_sealed_and_has_the_blobs_size():
    memory = HostMemory()
    with memory.fill(BLOB) as descriptor:
        write_at(descriptor, CONTENT, 0)
    descriptor = memory.descriptor(BLOB)
    assert is_sealed(descriptor)
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


def test_an_error_while_filling_leaves_nothing():
    memory = HostMemory()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError), memory.fill(BLOB):
        raise RuntimeError
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("content", "seals", "taken"),
    [
        (CONTENT, ALL, True),
        (CONTENT, ALL & ~fcntl.F_SEAL_WRITE, False),
        (CONTENT[:-1] + b"x", ALL, False),
    ],
)
def test_only_sealed_memory_with_the_right_content_is_taken_over(tmp_path, content, seals, taken):
    arguments = [HostMemory(tmp_path).file_name(BLOB), content.hex(), str(seals)]
    other = subprocess.Popen(
        [sys.executable, "-c", IMPOSTOR, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout.readline() == "ready\n"
        memory = HostMemory(tmp_path)
        assert not HostMemory(tmp_path / "other").take_over(BLOB)
        before = len(os.listdir("/proc/self/fd"))
        assert memory.take_over(BLOB) == taken
        assert memory.taken_over == taken
        assert len(os.listdir("/proc/self/fd")) == before + taken
        if taken:
            assert os.pread(memory.descriptor(BLOB), len(CONTENT), 0) == CONTENT
        other.communicate("")
    memory.close()
    assert not memory.take_over(BLOB)
