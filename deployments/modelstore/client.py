"""Client of the model store. A model stays in memory while its connection is open."""

import json
import os
import socket
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.modelstore import wire
from deployments.modelstore.errors import UnavailableError


class Hold:
    """A connection that keeps a model in memory. It closes when this object is garbage collected.

    `source` is the fastest tier that had all of the model when it was opened.
    """

    def __init__(self, connection: socket.socket, source: str) -> None:
        self.source = source
        self._descriptor = connection.detach()
        self.close = weakref.finalize(self, os.close, self._descriptor)

    def attached(self, tier: str, begin_s: float) -> None:
        """Report to the manager for how long this process attached to what was in the tier."""
        # Once this hold is closed, its descriptor may be another file's.
        if self.source == tier and self.close.alive:
            message = {"do": "attached", "seconds": time.monotonic() - begin_s}
            with suppress(OSError):  # the manager is gone
                os.write(self._descriptor, json.dumps(message).encode())


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
    return _opened(*open_in_tier("host", name, socket_path, timeout_s))


def share_file(path: str, socket_path: Path | None = None) -> tuple[Hold, SharedFile]:
    """Open a file of this process in host memory, from which all processes that share it read."""
    request = {"do": "share", "name": os.path.basename(path)}
    with open(path, "rb") as own:
        hold, (file,) = _opened(*_held(request, [own.fileno()], socket_path))
    return hold, file


def _opened(
    hold: Hold, grant: dict[str, Any], descriptors: list[int]
) -> tuple[Hold, tuple[SharedFile, ...]]:
    described = zip(grant["files"], descriptors, strict=True)
    return hold, tuple(
        SharedFile(name, sha256, size_bytes, descriptor)
        for (name, sha256, size_bytes), descriptor in described
    )


def open_in_tier(
    tier: str,
    name: str,
    socket_path: Path | None,
    timeout_s: float | None = None,
    *,
    if_faster: bool = False,
) -> tuple[Hold, dict[str, Any], list[int]]:
    """Open a model in one tier; return the grant and its descriptors, too."""
    request = {"do": "open", "name": name, "tier": tier, "if_faster": if_faster}
    return _held(request, [], socket_path, timeout_s)


def _held(
    request: dict[str, Any],
    sent: list[int],
    socket_path: Path | None,
    timeout_s: float | None = None,
) -> tuple[Hold, dict[str, Any], list[int]]:
    with wire.connect(socket_path or wire.default_socket()) as connection:
        grant, descriptors = _answer(connection, request, sent, timeout_s)
        return Hold(connection, grant["source"]), grant, descriptors


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
    with wire.connect(socket_path or wire.default_socket()) as connection:
        return _answer(connection, request, [], timeout_s)[0]["result"]


def list_models(socket_path: Path | None = None) -> list[dict[str, Any]]:
    models: list[dict[str, Any]] = []
    while part := ask("models", socket_path=socket_path, first=len(models)):
        models += part
    return models


def _answer(
    connection: socket.socket, request: dict[str, Any], sent: list[int], timeout_s: float | None
) -> tuple[dict[str, Any], list[int]]:
    connection.settimeout(timeout_s)
    try:
        wire.send(connection, request, sent)
        received = wire.receive(connection)
    except OSError as error:
        raise UnavailableError(f"the model store does not answer: {error}") from error
    if received is None:
        raise UnavailableError("the model store went away")
    wire.raise_failure(received[0])
    return received
