"""Messages between the manager and its clients, on a Unix socket with message boundaries.

A message is one JSON object and may carry descriptors. The kernel identifies each side's user
(SO_PEERCRED), and neither talks to another user.
"""

import array
import json
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from deployments.modelstore.errors import ERRORS, StoreError, UnavailableError
from deployments.modelstore.names import MAX_FILES
from policy.errors import SojournError

#: The environment variable that names the socket.
SOCKET_VARIABLE = "SOJOURN_STORE"
#: Far more than the longest message: a grant of `MAX_FILES` files, or a list of models.
MAX_MESSAGE_BYTES = 1 << 20
#: Far more than the longest request of a client.
MAX_REQUEST_BYTES = 1 << 13
_CREDENTIALS = struct.Struct("3i")


def default_socket() -> Path:
    """Return the socket's path: `SOJOURN_STORE`, or one in this user's runtime folder."""
    if configured := os.environ.get(SOCKET_VARIABLE):
        return Path(configured)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "sojourn" if runtime else Path(f"/tmp/sojourn-{os.getuid()}")
    return folder / "store.sock"


def make_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE_BYTES)
    return made


def connect(path: Path) -> socket.socket:
    """Connect to the manager; `UnavailableError` if none of this user listens there."""
    made = make_socket()
    try:
        made.connect(os.fspath(path))
    except OSError as error:
        made.close()
        raise UnavailableError(
            f"no model store answers at {path} ({error.strerror or error}); start one with "
            "`sojourn store serve`"
        ) from error
    if peer_uid(made) != os.getuid():
        made.close()
        raise UnavailableError(f"the model store at {path} belongs to another user")
    return made


def peer_uid(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(raw)[1]
    return uid


def send(connection: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
    """Send one message; `StoreError` if it is too long.

    `OSError` if the other end is gone, `BlockingIOError` if it does not read.
    """
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MAX_MESSAGE_BYTES // 2:
        raise StoreError(f"a message of {len(data)} bytes is too long")
    socket.send_fds(connection, [data], descriptors)


def receive(
    connection: socket.socket, max_bytes: int = MAX_MESSAGE_BYTES
) -> tuple[dict[str, Any], list[int]] | None:
    """Receive one message and its descriptors, or None if the other end closed.

    `OSError` if the connection failed; `StoreError` if it is no message of this protocol, whose
    descriptors are closed.
    """
    # `socket.recv_fds` ignores its flags.
    room = socket.CMSG_SPACE(MAX_FILES * array.array("i").itemsize)
    data, control, flags, _ = connection.recvmsg(max_bytes, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    if data and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        with suppress(ValueError, RecursionError):
            return json.loads(data), list(descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    if not data:
        return None
    raise StoreError("a message is cut off, or is not JSON")


def failure(error: SojournError) -> dict[str, Any]:
    """Return an error as a message."""
    return {"error": [type(error).__name__, str(error)]}


def raise_failure(message: dict[str, Any]) -> None:
    """Raise the error that a message contains, if any."""
    if "error" in message:
        kind, text = message["error"]
        raise ERRORS.get(kind, StoreError)(text)
