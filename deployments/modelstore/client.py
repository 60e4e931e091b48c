"""Client of the model store. A model stays in memory while its connection is open."""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.modelstore import wire
from deployments.modelstore.errors import ERRORS, StoreError, UnavailableError, UntrustedFileError
from deployments.modelstore.host_memory import is_sealed
from policy.errors import InvalidInputError


class Hold:
    """A connection that keeps a model in memory. It closes when this object is garbage collected.

    `source` is the fastest tier that had all of the model when it was opened.
    """

    def __init__(self, descriptor: int, source: str) -> None:
        self._descriptor = descriptor
        self.source = source

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._descriptor >= 0:
            close(self._descriptor)


@dataclass(frozen=True)
class SharedFile:
    """A model file in sealed memory.

    The caller closes `descriptor`; a mapping stays valid without it.
    """

    name: str
    sha256: str
    size_bytes: int
    descriptor: int


def open_model(
    name: str,
    socket_path: Path | None = None,
    timeout_s: float | None = None,
) -> tuple[Hold, tuple[SharedFile, ...]]:
    """Open a model in host memory; the store fetches it first if it has to.

    The model stays in memory as long as the hold does. By default the wait has no limit: another
    process's fetch may be ahead. Raises `StoreError` if the store refused it, or there is none.
    """
    return _held(*open_in_tier("host", name, socket_path, timeout_s))


def share_file(path: str, socket_path: Path | None = None) -> tuple[Hold, SharedFile]:
    """Open a file of this process in host memory, from which all processes that share it read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        hold, (file,) = _held(
            *_request({"do": "share", "name": os.path.basename(path)}, [descriptor], socket_path)
        )
    finally:
        os.close(descriptor)
    return hold, file


def _held(
    connection: socket.socket, message: dict[str, Any], descriptors: list[int]
) -> tuple[Hold, tuple[SharedFile, ...]]:
    with connection:
        files = _files_of(message, descriptors)
        return Hold(connection.detach(), str(message["source"])), files


def open_in_tier(
    tier: str,
    name: str,
    socket_path: Path | None,
    timeout_s: float | None = None,
) -> tuple[socket.socket, dict[str, Any], list[int]]:
    """Open a model in one tier; return the connection, the grant and its descriptors."""
    return _request({"do": "open", "name": name, "tier": tier}, [], socket_path, timeout_s)


def _request(
    request: dict[str, Any],
    sent: list[int],
    socket_path: Path | None,
    timeout_s: float | None = None,
) -> tuple[socket.socket, dict[str, Any], list[int]]:
    connection = wire.connect(socket_path or wire.default_socket())
    connection.settimeout(timeout_s)
    try:
        _send(connection, request, sent)
        message, descriptors = _receive(connection)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection, message, descriptors


def ask(
    do: str,
    name: str | None = None,
    socket_path: Path | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> Any:
    """Send a request, such as `stats`; wait for the answer at most `timeout_s`."""
    request = {"do": do, "name": name, **options}
    connection, message, _ = _request(request, [], socket_path, timeout_s)
    connection.close()
    return message["result"]


def list_models(socket_path: Path | None = None) -> list[dict[str, Any]]:
    models: list[dict[str, Any]] = []
    while part := ask("models", socket_path=socket_path, first=len(models)):
        models += part
    return models


def _files_of(message: dict[str, Any], descriptors: list[int]) -> tuple[SharedFile, ...]:
    try:
        described = zip(message["files"], descriptors, strict=True)
        files = tuple(
            SharedFile(name, sha256, size_bytes, descriptor)
            for (name, sha256, size_bytes), descriptor in described
        )
        for file in files:
            size_bytes = os.fstat(file.descriptor).st_size
            if not is_sealed(file.descriptor) or size_bytes != file.size_bytes:
                raise UntrustedFileError(f"{file.name}: the manager sent memory that may change")
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return files


def _send(
    connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()
) -> None:
    try:
        wire.send(connection, message, list(descriptors))
    except OSError as error:
        raise UnavailableError(f"the model store went away: {error}") from error


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    try:
        received = wire.receive(connection)
    except OSError as error:
        raise UnavailableError(f"the model store does not answer: {error}") from error
    if received is None:
        raise UnavailableError("the model store went away")
    if "error" in received[0]:
        kind, text = received[0]["error"]
        if kind == InvalidInputError.__name__:
            raise InvalidInputError(text)
        raise ERRORS.get(kind, StoreError)(text)
    return received
