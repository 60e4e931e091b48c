"""The digests of a file, computed while it streams in, and those of its blocks for later reads."""

import hashlib
from dataclasses import dataclass

from modelstore.errors import UntrustedFileError
from modelstore.names import Blob

#: Later reads check each block on its own, so that several threads can.
BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class BlockDigests:
    """SHA-256 of each block of `BLOCK_BYTES` of a blob; the last block may be shorter."""

    digests: tuple[bytes, ...]

    def check(self, blob: Blob, index: int, block: memoryview) -> None:
        """Check one block.

        Raises
        ------
        UntrustedFileError
            The block is not what was verified when the blob came in.
        """
        if hashlib.sha256(block).digest() != self.digests[index]:
            raise UntrustedFileError(f"cached file {blob.sha256[:12]}: block {index} is corrupted")


class StreamCheck:
    """Check a blob that streams in: its length, then its digest.

    Parameters
    ----------
    blob : Blob
        What the bytes must be.
    """

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._whole = hashlib.sha256()
        self._block = hashlib.sha256()
        self._blocks: list[bytes] = []
        self.done_bytes = 0

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes.

        Raises
        ------
        UntrustedFileError
            There are more bytes than the blob has.
        """
        view = memoryview(data)
        if self.done_bytes + len(view) > self._blob.size_bytes:
            raise UntrustedFileError(
                f"file {self._blob.sha256[:12]}: more than the {self._blob.size_bytes} bytes that "
                "were announced"
            )
        self._whole.update(view)
        while view:
            room = BLOCK_BYTES - self.done_bytes % BLOCK_BYTES
            part, view = view[:room], view[room:]
            self._block.update(part)
            self.done_bytes += len(part)
            if self.done_bytes % BLOCK_BYTES == 0:
                self._end_block()

    def finish(self) -> BlockDigests:
        """Return the blocks' digests if the bytes were those of the blob.

        Raises
        ------
        UntrustedFileError
            They were not.
        """
        blob = self._blob
        if self.done_bytes % BLOCK_BYTES:
            self._end_block()
        if self.done_bytes != blob.size_bytes or self._whole.hexdigest() != blob.sha256:
            raise UntrustedFileError(
                f"file {blob.sha256[:12]}: {self.done_bytes} of {blob.size_bytes} bytes with the "
                f"digest {self._whole.hexdigest()[:12]}"
            )
        return BlockDigests(tuple(self._blocks))

    def _end_block(self) -> None:
        self._blocks.append(self._block.digest())
        self._block = hashlib.sha256()
