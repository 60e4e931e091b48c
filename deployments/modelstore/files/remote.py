"""Sources of models: a folder (`file://`), or a server or object store that obstore reads.

A model's files lie in the folder ``framework/name/version`` below the remote's root, together with
a file `SHA256SUMS` in the format of ``sha256sum *.safetensors``.
"""

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from deployments.modelstore.errors import FetchError, StoreError, UnknownModelError
from deployments.modelstore.names import SUMS, Blob, Manifest, ModelName, parse_sums
from policy.errors import InvalidInputError

logger = logging.getLogger(__name__)

#: Limit on the remote's answer to each request of at most `PIECE_BYTES`.
REQUEST_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0
#: Failed requests are retried for this long before the fetch fails.
RETRY_S = 10.0
PIECE_BYTES = 16 << 20
_MAX_SUMS_BYTES = 1 << 20
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Remote(Protocol):
    """The lowest tier. Its methods block and raise only `StoreError`."""

    def size_bytes(self, name: ModelName, file: str) -> int:
        """Return the size of a file; `UnknownModelError` if there is none."""

    def read(self, name: ModelName, file: str, offset: int) -> Iterator[bytes]:
        """Yield a file's bytes from an offset."""


def open_remote(url: str) -> Remote:
    """Return the remote at a URL; `InvalidInputError` if it cannot be one of a remote."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc:
        return FolderRemote(Path(unquote(parts.path)))
    if not parts.netloc:
        raise InvalidInputError(
            f"remote {url!r}: must be file:///…, https://…, http://…, s3://…, gs://… or az://…"
        )
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        logger.warning(
            "remote %s: the digests of models come over the same open connection as the models, so "
            "that whoever is in between can replace both; use https://",
            url,
        )
    return ObjectRemote(url)


def resolve(remote: Remote, name: ModelName) -> Manifest:
    """Return the files of a model: their digests from `SHA256SUMS`, their sizes from the remote."""
    if remote.size_bytes(name, SUMS) > _MAX_SUMS_BYTES:
        raise UnknownModelError(f"{name}: {SUMS} has more than {_MAX_SUMS_BYTES} bytes")
    try:
        text = b"".join(remote.read(name, SUMS, 0)).decode("ascii")
    except UnicodeDecodeError as error:
        raise UnknownModelError(f"{name}: {SUMS} is not text") from error
    files = []
    for file, digest in parse_sums(name, text).items():
        size_bytes = remote.size_bytes(name, file)
        if size_bytes < 1:
            raise UnknownModelError(f"{name}: {file} is empty")
        files.append((file, Blob(digest, size_bytes)))
    return Manifest(tuple(files))


class FolderRemote:
    """A folder of this machine or of a mounted file system."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def size_bytes(self, name: ModelName, file: str) -> int:
        with _errors_of(name, file):
            return self._path(name, file).stat().st_size

    def read(self, name: ModelName, file: str, offset: int) -> Iterator[bytes]:
        with _errors_of(name, file), open(self._path(name, file), "rb") as opened:
            opened.seek(offset)
            while part := opened.read(1 << 20):
                yield part

    def _path(self, name: ModelName, file: str) -> Path:
        """Return the file's real path; symbolic links may not leave the root."""
        path = Path(os.path.realpath(self._root / name.path / file, strict=True))
        if not path.is_relative_to(os.path.realpath(self._root)):
            raise UnknownModelError(f"{name}: {file} is a link that leaves the remote's folder")
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnknownModelError(f"{name}: {file} is not a file")
        return path


class ObjectRemote:
    """An HTTP server that supports range requests, or an object store, read with obstore.

    Every piece is a separate request with the entity tag of the first, so a changed file is an
    error and a hanging server is noticed within a piece.
    """

    def __init__(self, url: str) -> None:
        from obstore.store import from_url  # loads a large library

        config: Any = {
            "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
            "allow_http": True,
        }
        try:
            self._store = from_url(
                url,
                client_options=config,
                retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=RETRY_S)},
            )
        except Exception as error:
            raise InvalidInputError(f"remote {url!r}: {_first_line(error)}") from error

    def size_bytes(self, name: ModelName, file: str) -> int:
        import obstore

        with _errors_of(name, file):
            return int(obstore.head(self._store, f"{name.path}/{file}")["size"])

    def read(self, name: ModelName, file: str, offset: int) -> Iterator[bytes]:
        import obstore

        path = f"{name.path}/{file}"
        with _errors_of(name, file):
            meta = obstore.head(self._store, path)
            while offset < meta["size"]:
                end = min(offset + PIECE_BYTES, meta["size"])
                options: Any = {"range": (offset, end)}
                if meta.get("e_tag"):
                    options["if_match"] = meta["e_tag"]
                for part in obstore.get(self._store, path, options=options).stream():
                    offset += len(part)
                    yield bytes(part)
                if offset != end:
                    raise FetchError(f"{name}: {file} stopped at byte {offset} of {end}")


@contextmanager
def _errors_of(name: ModelName, file: str) -> Iterator[None]:
    """Turn a remote's exceptions into `StoreError`."""
    try:
        yield
    except StoreError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnknownModelError(f"{name}: the remote has no {file}") from error
    except Exception as error:
        raise FetchError(f"{name}: {file}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
