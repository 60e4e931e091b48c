"""Digests of a file: SHA-256 of the stream, and checksums of its blocks for later reads.

A new file is checked against the SHA-256 of its publisher. Later reads from the disk are checked
against CRC-32s computed then, at a third of the cost. They find damage by the disk; a process that
may write to the store's folder can change them, too.
"""

import hashlib
import zlib

from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.names import Blob

#: Later reads check each block on its own, in several threads. A block fits into a core's cache,
#: where it is checked and copied.
BLOCK_BYTES = 2 << 20


class StreamCheck:
    """Check a blob that streams in: its length, then its digest."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._whole = hashlib.sha256()
        self._checksums: list[int] = []
        self.done_bytes = 0

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes; raise `UntrustedFileError` if the blob is shorter."""
        view = memoryview(data)
        if self.done_bytes + len(view) > self._blob.size_bytes:
            raise UntrustedFileError(
                f"file {self._blob.sha256[:12]}: more than the {self._blob.size_bytes} bytes that "
                "were announced"
            )
        self._whole.update(view)
        while view:
            begin = self.done_bytes % BLOCK_BYTES
            part, view = view[: BLOCK_BYTES - begin], view[BLOCK_BYTES - begin :]
            before = self._checksums.pop() if begin else 0
            self._checksums.append(zlib.crc32(part, before))
            self.done_bytes += len(part)

    def finish(self) -> list[int]:
        """Return the blocks' checksums; raise `UntrustedFileError` on bytes of another blob."""
        blob = self._blob
        if self.done_bytes != blob.size_bytes or self._whole.hexdigest() != blob.sha256:
            raise UntrustedFileError(
                f"file {blob.sha256[:12]}: {self.done_bytes} of {blob.size_bytes} bytes with the "
                f"digest {self._whole.hexdigest()[:12]}"
            )
        return self._checksums
