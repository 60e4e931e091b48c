"""Digests of a file: SHA-256 of the stream, and tags of its blocks for later reads.

A new file is checked against the SHA-256 of its publisher. Later reads from the disk are checked
against tags computed then: AES-GMAC (NIST SP 800-38D) with a random key for each file, at a sixth
of the cost of SHA-256. A wrong block passes with a probability below 2⁻¹⁰⁰. The tags lie next to
the file, so they do not protect against a process that may write to the store's folder.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.names import Blob

#: Later reads check each block on its own, in several threads. A block fits into a core's cache,
#: where it is checked and copied.
BLOCK_BYTES = 2 << 20
_KEY_BITS = 128
_NONCE_BYTES = 12


@dataclass(frozen=True)
class BlockTags:
    """The tag of each block of `BLOCK_BYTES` of a blob; the last block may be shorter.

    Each blob has its own key, so no block number is used twice with a key.
    """

    key: bytes
    tags: tuple[bytes, ...]

    def check(self, blob: Blob, index: int, block: memoryview) -> None:
        if AESGCM(self.key).encrypt(_nonce(index), b"", block) != self.tags[index]:
            raise UntrustedFileError(f"cached file {blob.sha256[:12]}: block {index} is corrupted")

    def to_dict(self) -> dict[str, Any]:
        return {"key": self.key.hex(), "tags": [tag.hex() for tag in self.tags]}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "BlockTags":
        """Undo `to_dict`; `KeyError`, `TypeError` or `ValueError` if `saved` has another form."""
        return cls(bytes.fromhex(saved["key"]), tuple(map(bytes.fromhex, saved["tags"])))


class StreamCheck:
    """Check a blob that streams in: its length, then its digest."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._whole = hashlib.sha256()
        self._key = AESGCM.generate_key(_KEY_BITS)
        self._tags: list[bytes] = []
        self._block = self._begin_block()
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
            room = BLOCK_BYTES - self.done_bytes % BLOCK_BYTES
            part, view = view[:room], view[room:]
            self._block.authenticate_additional_data(part)
            self.done_bytes += len(part)
            if self.done_bytes % BLOCK_BYTES == 0:
                self._end_block()

    def finish(self) -> BlockTags:
        """Return the blocks' tags; raise `UntrustedFileError` if the bytes are not the blob's."""
        blob = self._blob
        if self.done_bytes % BLOCK_BYTES:
            self._end_block()
        if self.done_bytes != blob.size_bytes or self._whole.hexdigest() != blob.sha256:
            raise UntrustedFileError(
                f"file {blob.sha256[:12]}: {self.done_bytes} of {blob.size_bytes} bytes with the "
                f"digest {self._whole.hexdigest()[:12]}"
            )
        return BlockTags(self._key, tuple(self._tags))

    def _begin_block(self) -> Any:
        return Cipher(AES(self._key), GCM(_nonce(len(self._tags)))).encryptor()

    def _end_block(self) -> None:
        self._block.finalize()
        self._tags.append(self._block.tag)
        self._block = self._begin_block()


def _nonce(index: int) -> bytes:
    return index.to_bytes(_NONCE_BYTES, "big")
