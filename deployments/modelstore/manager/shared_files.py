"""Files that clients share by their descriptors: which content each has, and its bytes."""

import fcntl
import hashlib
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from deployments.modelstore.errors import StoreError, UnknownModelError, UntrustedFileError
from deployments.modelstore.files.remote import Remote, resolve
from deployments.modelstore.names import FILES, Blob, Manifest, ModelName

Identity = tuple[int, int, int, int, int]
"""Device, inode, size, and times of the last write and change; nobody can set the latter."""

_PART_BYTES = 1 << 20
#: Two writes within a tick of the kernel's clock leave the same times.
_SETTLED_NS = 1_000_000_000
#: Contents that are remembered, the latest.
_MAX_KNOWN = 10_000


class ClientFile:
    """A file that a client has opened; it is closed when nobody refers to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode) or not self.identity[2]:
            raise StoreError("only a file that is not empty can be shared")

    def __del__(self) -> None:
        os.close(self._descriptor)

    @property
    def identity(self) -> Identity:
        found = os.fstat(self._descriptor)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    @property
    def settled(self) -> bool:
        """Return whether a later write gives the file another identity."""
        return time.time_ns() - self.identity[4] > _SETTLED_NS

    def parts(self, offset: int = 0) -> Iterator[bytes]:
        while part := os.pread(self._descriptor, _PART_BYTES, offset):
            offset += len(part)
            yield part

    def blob(self) -> Blob:
        """Read the whole file; `UntrustedFileError` if it changes meanwhile."""
        before = self.identity
        digest = hashlib.sha256()
        for part in self.parts():
            digest.update(part)
        if self.identity != before:
            raise UntrustedFileError("the file was changed while it was read")
        return Blob(digest.hexdigest(), before[2])


class SharedFiles:
    """The lowest tier: files that clients have open now, else the remote, if there is one."""

    def __init__(self, remote: Remote | None) -> None:
        self._remote = remote
        # Clients may share the same content, and die before it is read.
        self._files: WeakKeyDictionary[ClientFile, ModelName] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._blobs: dict[Identity, Blob] = {}

    def known(self, file: ClientFile) -> Blob | None:
        return self._blobs.get(file.identity)

    def remember(self, identity: Identity, blob: Blob) -> None:
        self._blobs[identity] = blob
        if len(self._blobs) > _MAX_KNOWN:
            del self._blobs[next(iter(self._blobs))]

    def add(self, label: str, blob: Blob, file: ClientFile) -> tuple[ModelName, Manifest]:
        """Offer a file's bytes as long as `file` is referred to; return its name and content."""
        label = re.sub(r"[^A-Za-z0-9._-]", "_", label).lstrip("._-")[:100] or "file"
        name = ModelName(FILES, label, blob.sha256[:16])
        with self._lock:
            self._files[file] = name
        return name, Manifest(((label, blob),))

    def resolve(self, name: ModelName) -> Manifest:
        return resolve(self._remote_of(name), name)

    def read(self, name: ModelName, file: str, offset: int) -> Iterator[bytes]:
        with self._lock:
            shared = next((each for each, known in self._files.items() if known == name), None)
        if shared is not None:
            return shared.parts(offset)
        return self._remote_of(name).read(name, file, offset)

    def _remote_of(self, name: ModelName) -> Remote:
        if self._remote is None:
            raise UnknownModelError(f"{name}: not in the store, which has no --remote")
        return self._remote
