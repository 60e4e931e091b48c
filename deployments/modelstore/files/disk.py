"""The disk tier: verified files, by digest.

A file is downloaded to `partial/`, and renamed into `blobs/` once its length, digest and format are
verified. The CRC-32s of its blocks lie next to it, and are checked in every later read, at a third
of the cost of a digest; so nothing waits for the disk to write (fsync). They find damage by the
disk; a process that may write to the store's folder can change them, too.
"""

import errno
import json
import logging
import mmap
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.files.digests import checked
from deployments.modelstore.files.safetensors_header import read_entries
from deployments.modelstore.host_memory import write_at
from deployments.modelstore.names import Blob, Manifest, ModelName
from policy.errors import InvalidInputError

logger = logging.getLogger(__name__)

#: Later reads check each block on its own, in several threads. A block fits into a core's cache,
#: where it is checked and copied.
BLOCK_BYTES = 2 << 20
#: Concurrent reads of one blob; more do not help on a disk that queues them.
_READERS = 4
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Disk:
    """The files of the disk tier below a folder, made if missing."""

    def __init__(self, root: Path) -> None:
        self._blobs, self._partial = root / "blobs", root / "partial"
        self._manifests = root / "manifests"
        for folder in (self._blobs, self._partial, self._manifests):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def recover(self) -> tuple[dict[ModelName, Manifest], list[Blob]]:
        """Return the models and blobs of an earlier run; delete incomplete ones."""
        blobs = []
        for path in sorted(self._blobs.iterdir()):
            if _DIGEST.fullmatch(path.name):
                blob = Blob(path.name, path.stat().st_size)
                try:
                    self._checksums(blob)
                except UntrustedFileError:
                    self.drop(blob)
                else:
                    blobs.append(blob)
            elif not (path.suffix == ".blocks" and path.with_suffix("").is_file()):
                path.unlink(missing_ok=True)
        models: dict[ModelName, Manifest] = {}
        for path in sorted(self._manifests.glob("*/*/*.json")):
            with suppress(ValueError, TypeError, InvalidInputError):
                name = ModelName(*path.relative_to(self._manifests).with_suffix("").parts)
                files = tuple(
                    (file, Blob(digest, size_bytes))
                    for file, digest, size_bytes in json.loads(path.read_bytes())
                )
                if files and all(
                    _DIGEST.fullmatch(blob.sha256) and isinstance(blob.size_bytes, int)
                    for _, blob in files
                ):
                    models[name] = Manifest(files)
        for path in self._partial.iterdir():
            path.unlink()
        return models, blobs

    def save_manifest(self, name: ModelName, manifest: Manifest) -> None:
        """Save the files of a model, so that it opens without the remote."""
        path = self._manifests / f"{name.path}.json"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, [[file, blob.sha256, blob.size_bytes] for file, blob in manifest.files])

    def remove_manifest(self, name: ModelName) -> None:
        (self._manifests / f"{name.path}.json").unlink(missing_ok=True)

    def fetch(self, blob: Blob, parts: Iterable[bytes]) -> None:
        """Write a blob whose bytes come in parts; if that fails, nothing of it is kept.

        Raises `UntrustedFileError` if the bytes are not the blob's, or not a safetensors file, and
        `OSError` if the disk failed or is full.
        """
        # Other blobs may claim the same digest.
        path = self._partial / f"{blob.sha256}.{blob.size_bytes}"
        try:
            checksums = self._receive(blob, path, parts)
            try:
                _write(self._blobs / f"{blob.sha256}.blocks", [blob.size_bytes, checksums])
                os.rename(path, self._blobs / blob.sha256)
            except OSError:
                self.drop(blob)
                raise
        finally:
            path.unlink(missing_ok=True)

    def read(self, blob: Blob, target: int, on_block: Callable[[], None] = lambda: None) -> None:
        """Copy a blob into a memory file, and check every block.

        `on_block` is called after each of them; an error that it raises ends the copy. Raises
        `UntrustedFileError` if the file is damaged or gone, and `OSError` if it cannot be read, or
        there is no memory.
        """
        checksums = self._checksums(blob)
        descriptor = self._open(blob)
        thread = threading.local()

        def begin() -> None:
            thread.buffer = mmap.mmap(-1, BLOCK_BYTES)  # whole pages, for O_DIRECT

        def copy(index: int, checksum: int) -> None:
            offset = index * BLOCK_BYTES
            os.preadv(descriptor, [thread.buffer], offset)
            with memoryview(thread.buffer)[: blob.size_bytes - offset] as block:
                if zlib.crc32(block) != checksum:
                    raise UntrustedFileError(f"cached file {blob.sha256[:12]}: its bytes are wrong")
                write_at(target, block, offset)

        try:
            with ThreadPoolExecutor(_READERS, initializer=begin) as pool:
                for _ in pool.map(copy, range(len(checksums)), checksums):
                    on_block()
        finally:
            os.close(descriptor)

    def drop(self, blob: Blob) -> None:
        """Delete a blob. A file that cannot be deleted is logged and stays until the next start."""
        for name in (blob.sha256, f"{blob.sha256}.blocks"):
            try:
                (self._blobs / name).unlink(missing_ok=True)
            except OSError as error:
                logger.warning("cannot delete a cached file: %s", error)

    def _receive(self, blob: Blob, path: Path, parts: Iterable[bytes]) -> list[int]:
        with open(path, "w+b") as file:
            file.writelines(checked(blob, parts))
            file.flush()
            read_entries(file.fileno())
            file.seek(0)
            return [zlib.crc32(block) for block in iter(partial(file.read, BLOCK_BYTES), b"")]

    def _checksums(self, blob: Blob) -> list[int]:
        """Return the checksums of a blob's blocks."""
        try:
            saved = json.loads((self._blobs / f"{blob.sha256}.blocks").read_bytes())
            size_bytes, checksums = saved
        except (OSError, ValueError, TypeError) as error:
            raise UntrustedFileError(f"cached file {blob.sha256[:12]}: {error}") from error
        if size_bytes != blob.size_bytes or len(checksums) != -(-size_bytes // BLOCK_BYTES):
            raise UntrustedFileError(f"cached file {blob.sha256[:12]}: has another length")
        return list(checksums)

    def _open(self, blob: Blob) -> int:
        """Open a blob past the page cache, which would keep a second copy in memory."""
        path, flags = self._blobs / blob.sha256, os.O_RDONLY | os.O_CLOEXEC
        try:
            try:
                return os.open(path, flags | os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:  # this file system has no O_DIRECT
                    raise
                return os.open(path, flags)
        except FileNotFoundError as error:
            raise UntrustedFileError(f"cached file {blob.sha256[:12]} is gone") from error


def _write(path: Path, content: Any) -> None:
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.write_text(json.dumps(content))
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
