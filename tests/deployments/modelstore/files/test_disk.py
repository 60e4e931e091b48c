import errno
import hashlib
import json
import os

import numpy as np
import pytest
import safetensors.numpy

from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.files import disk as disk_module
from deployments.modelstore.files.disk import Disk
from deployments.modelstore.host_memory import HostMemory
from deployments.modelstore.names import Blob, Manifest, ModelName

BLOCK_BYTES = 8192
CONTENT = safetensors.numpy.save({"a": np.random.default_rng(1).random(20_000)})


def blob_of(content):
    return Blob(hashlib.sha256(content).hexdigest(), len(content))


BLOB = blob_of(CONTENT)
NAME = ModelName("pytorch", "m", "1")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(disk_module, "BLOCK_BYTES", BLOCK_BYTES)


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    disk.fetch(BLOB, [CONTENT])
    return disk


def read(disk, on_block=lambda: None):
    memory = HostMemory()
    try:
        with memory.fill(BLOB) as target:
            disk.read(BLOB, target, on_block)
        descriptor = memory.descriptor(BLOB)
        return os.pread(descriptor, BLOB.size_bytes + 1, 0)
    finally:
        memory.close()


def test_a_blob_of_many_blocks_comes_back_whole(disk):
    blocks: list[None] = []
    assert read(disk, lambda: blocks.append(None)) == CONTENT
    assert len(blocks) == -(-len(CONTENT) // BLOCK_BYTES) > 10


@pytest.mark.parametrize(
    "content", [CONTENT[:-1], CONTENT + b"x", CONTENT[:-1] + b"x", b"\x80\x04pickle" * 100]
)
def test_a_wrong_file_is_refused_and_not_kept(tmp_path, content):
    disk = Disk(tmp_path)
    blob = BLOB if len(content) > 2000 else blob_of(content)
    with pytest.raises(UntrustedFileError):
        disk.fetch(blob, [content])
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def swapped(content):
    first, last = content[:BLOCK_BYTES], content[5 * BLOCK_BYTES : 6 * BLOCK_BYTES]
    return last + content[BLOCK_BYTES : 5 * BLOCK_BYTES] + first + content[6 * BLOCK_BYTES :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: bytes([content[0] ^ 1]) + content[1:],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        swapped,
        lambda content: content[:-1],
        lambda content: b"",
    ],
)
def test_damage_is_found_and_nothing_is_left_behind(disk, tmp_path, damage):
    (tmp_path / "blobs" / BLOB.sha256).write_bytes(damage(CONTENT))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UntrustedFileError, match="are wrong"):
        read(disk)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("after", [0, 1])
def test_a_disk_that_is_full_at_the_end_keeps_nothing(tmp_path, monkeypatch, after):
    renamed, rename = [], os.rename

    def full(*paths):
        renamed.append(paths)
        if len(renamed) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(*paths)

    disk = Disk(tmp_path)
    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="No space"):
        disk.fetch(BLOB, [CONTENT])
    assert not list((tmp_path / "partial").iterdir())
    assert not list((tmp_path / "blobs").iterdir())
    with pytest.raises(OSError, match="No space"):
        disk.save_manifest(NAME, Manifest((("model.safetensors", BLOB),)))
    assert not list((tmp_path / "manifests").rglob("*.new"))


def test_a_restart_finds_what_is_whole_and_deletes_the_rest(disk, tmp_path):
    manifest = Manifest((("model.safetensors", BLOB),))
    disk.save_manifest(NAME, manifest)
    partial = tmp_path / "partial" / f"{BLOB.sha256}.{BLOB.size_bytes}"
    for path in (partial, tmp_path / "blobs" / ("1" * 64), tmp_path / "blobs" / "x.new"):
        path.write_bytes(b"half")
    (tmp_path / "blobs" / ("2" * 64 + ".blocks")).write_text("[]")
    other = tmp_path / "manifests" / "pytorch" / "n"
    other.mkdir()
    (other / "1.json").write_text('{"name": ["pytorch", "..", "1"], "files": []}')
    models, blobs = Disk(tmp_path).recover()
    assert models == {NAME: manifest}
    assert blobs == [BLOB]
    left = {path.name for path in (tmp_path / "blobs").iterdir()}
    assert left == {BLOB.sha256, f"{BLOB.sha256}.blocks"}
    assert not partial.exists()
    disk.remove_manifest(NAME)
    assert Disk(tmp_path).recover()[0] == {}


@pytest.mark.parametrize(
    "files",
    [
        [],
        [["f.safetensors", 5, "x"]],
        [["f.safetensors", ["0" * 64], 3]],
        [["f.safetensors", "../../../etc/passwd", 3]],
        [["f.safetensors", "0" * 64, "3"]],
    ],
)
def test_a_restart_leaves_out_a_wrong_list_of_files(disk, tmp_path, files):
    manifest = Manifest((("model.safetensors", BLOB),))
    disk.save_manifest(NAME, manifest)
    (tmp_path / "manifests" / "pytorch" / "m" / "2.json").write_text(json.dumps(files))
    assert Disk(tmp_path).recover() == ({NAME: manifest}, [BLOB])
