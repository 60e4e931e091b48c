"""Check that bytes are those of a blob: their number and their SHA-256."""

import hashlib
from collections.abc import Iterable, Iterator

from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.names import Blob


def checked(blob: Blob, parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts of a blob; in the end, `UntrustedFileError` if they are of another.

    If they are too many, the error comes at once.
    """
    whole, size_bytes = hashlib.sha256(), 0
    for part in parts:
        size_bytes += len(part)
        if size_bytes > blob.size_bytes:
            break
        whole.update(part)
        yield part
    if (size_bytes, whole.hexdigest()) != (blob.size_bytes, blob.sha256):
        raise UntrustedFileError(
            f"file {blob.sha256[:12]}: {size_bytes} of {blob.size_bytes} bytes with the digest "
            f"{whole.hexdigest()[:12]}"
        )
