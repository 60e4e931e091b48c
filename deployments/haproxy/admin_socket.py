"""HAProxy's admin socket: ask it, and stand in front of it.

Ray takes a HAProxy as started once ``show info`` has the id of the process that Ray started. That
is the supervisor, so the relay answers with its id; everything else passes unchanged.
"""

import os
import re
import socket
from contextlib import suppress
from pathlib import Path

from deployments.haproxy.listeners import HAND_OVER, hand_over

_PID = re.compile(rb"^Pid: (\d+)$", re.MULTILINE)
_TIMEOUT_S = 1.0


class AdminError(OSError):
    """HAProxy's admin socket does not answer."""


def ask(path: Path, command: bytes, timeout_s: float = _TIMEOUT_S) -> bytes:
    """Return HAProxy's answer to a command; raise `AdminError` if there is none in time."""
    answer = bytearray()
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout_s)
            client.connect(str(path))
            client.sendall(command + b"\n")
            while part := client.recv(1 << 16):
                answer += part
    except OSError as error:
        raise AdminError(f"{path}: {error}") from error
    return bytes(answer)


def process_at(path: Path) -> int | None:
    """Return the process id of the HAProxy that answers at an admin socket, if one does."""
    with suppress(AdminError):
        found = _PID.search(ask(path, b"show info"))
        return int(found[1]) if found else None
    return None


class AdminRelay:
    """Answer commands at Ray's path for the admin socket, and hand the listening sockets over.

    The relay appears there, in place of a predecessor's, when `open` is called. `haproxy_socket` is
    to be assigned when another HAProxy is in charge; `sockets` are the listening ones by port.
    """

    def __init__(self, path: Path, haproxy_socket: Path) -> None:
        self.haproxy_socket = haproxy_socket
        self.sockets: dict[int, socket.socket] = {}
        self._path = path
        self._unopened = path.with_name(f"{os.getpid()}.new")
        self._listener = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)  # only this user may control HAProxy
        try:
            self._unopened.unlink(missing_ok=True)
            self._listener.bind(str(self._unopened))
        finally:
            os.umask(before)
        self._listener.listen(64)
        self._listener.setblocking(False)

    def open(self) -> None:
        self._unopened.rename(self._path)

    def fileno(self) -> int:
        return self._listener.fileno()

    def answer_next(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            client.settimeout(_TIMEOUT_S)
            with client, client.makefile("rb") as lines:
                command = lines.readline().strip()
                if command == HAND_OVER:
                    hand_over(client, self.haproxy_socket, self.sockets.values())
                    return
                answer = ask(self.haproxy_socket, command)
                if command.startswith(b"show info"):
                    answer = _PID.sub(b"Pid: %d" % os.getpid(), answer)
                client.sendall(answer)

    def close(self) -> None:
        """Stop listening. The path stays: it may be a successor's by now."""
        self._listener.close()
        self._unopened.unlink(missing_ok=True)
