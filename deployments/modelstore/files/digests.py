"""The digests of a file: SHA-256 while it streams in, and tags of its blocks for later reads.

A file that comes in is checked against the SHA-256 that its publisher wrote down. What is read from
the disk again later is checked against tags that were computed then: AES-GMAC (NIST SP 800-38D)
with a random key for each file, which costs a sixth of SHA-256. A wrong block passes with a
probability below 2⁻¹⁰⁰, whatever went wrong. The tags lie beside the file, so neither they nor any
other digest kept there would stop a process that may write to the store's folder.
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

#: Later reads check each block on its own, so that several threads can. A block fits into a core's
#: cache, where it is checked and copied.
BLOCK_BYTES = 2 << 20
_KEY_BITS = 128
_NONCE_BYTES = 12


@dataclass(frozen=True)
class BlockTags:
    """The tag of each block of `BLOCK_BYTES` of a blob; the last block may be shorter.

    Attributes
    ----------
    key : bytes
        The key of this blob's tags alone, so that no block number is used twice with a key.
    tags : tuple of bytes
    """

    key: bytes
    tags: tuple[bytes, ...]

    def check(self, blob: Blob, index: int, block: memoryview) -> None:
        """Check one block.

        Raises
        ------
        UntrustedFileError
            The block is not what was verified when the blob came in.
        """
        if AESGCM(self.key).encrypt(_nonce(index), b"", block) != self.tags[index]:
            raise UntrustedFileError(f"cached file {blob.sha256[:12]}: block {index} is corrupted")

    def to_dict(self) -> dict[str, Any]:
        """Return the key and the tags as JSON values."""
        return {"key": self.key.hex(), "tags": [tag.hex() for tag in self.tags]}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "BlockTags":
        """Make one from what `to_dict` returned.

        Raises
        ------
        KeyError, TypeError, ValueError
            It does not have this form.
        """
        return cls(bytes.fromhex(saved["key"]), tuple(map(bytes.fromhex, saved["tags"])))


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
        self._key = AESGCM.generate_key(_KEY_BITS)
        self._tags: list[bytes] = []
        self._block = self._begin_block()
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
            self._block.authenticate_additional_data(part)
            self.done_bytes += len(part)
            if self.done_bytes % BLOCK_BYTES == 0:
                self._end_block()

    def finish(self) -> BlockTags:
        """Return the blocks' tags if the bytes were those of the blob.

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
        return BlockTags(self._key, tuple(self._tags))

    def _begin_block(self) -> Any:
        return Cipher(AES(self._key), GCM(_nonce(len(self._tags)))).encryptor()

    def _end_block(self) -> None:
        self._block.finalize()
        self._tags.append(self._block.tag)
        self._block = self._begin_block()


def _nonce(index: int) -> bytes:
    return index.to_bytes(_NONCE_BYTES, "big")
