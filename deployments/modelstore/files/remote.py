"""Sources of models: a folder (`file://`), a server or an object store, read with obstore.

A model's files lie in the folder ``framework/name/version`` below the remote's root, together with
a file `SHA256SUMS` in the format of ``sha256sum *.safetensors``.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
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


def open_remote(url: str) -> "Remote":
    """Return the remote at a URL; `InvalidInputError` if it cannot be one of a remote."""
    parts = urlsplit(url)
    if bool(parts.netloc) == (parts.scheme == "file"):
        raise InvalidInputError(
            f"remote {url!r}: must be file:///…, https://…, http://…, s3://…, gs://… or az://…"
        )
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        logger.warning(
            "remote %s: the digests of models come over the same open connection as the models, so "
            "that whoever is in between can replace both; use https://",
            url,
        )
    return Remote(url)


def resolve(remote: "Remote", name: ModelName) -> Manifest:
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


class Remote:
    """A folder, an HTTP server that supports range requests, or an object store.

    Its methods block and raise only `StoreError`; one of a file that is not there is
    `UnknownModelError`.

    Every piece is a separate request with the entity tag of the first, so a changed file is an
    error and a hanging server is noticed within a piece.
    """

    def __init__(self, url: str) -> None:
        from obstore.store import from_url  # loads a large library

        options: Any = {
            "client_options": {
                "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
                "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
                "allow_http": True,
            },
            "retry_config": {"max_retries": 5, "retry_timeout": timedelta(seconds=RETRY_S)},
        }
        self._folder = ""
        if url.startswith("file:"):
            # Below the root, as the folder may be of a file system that is not mounted yet.
            self._folder, url, options = (
                unquote(urlsplit(url).path).strip("/") + "/",
                "file:///",
                {},
            )
        try:
            self._store = from_url(url, **options)
        except Exception as error:
            raise InvalidInputError(f"remote {url!r}: {_first_line(error)}") from error

    def size_bytes(self, name: ModelName, file: str) -> int:
        import obstore

        with _errors_of(name, file):
            return int(obstore.head(self._store, f"{self._folder}{name.path}/{file}")["size"])

    def read(self, name: ModelName, file: str, offset: int) -> Iterator[bytes]:
        """Yield a file's bytes from an offset."""
        import obstore

        path = f"{self._folder}{name.path}/{file}"
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
