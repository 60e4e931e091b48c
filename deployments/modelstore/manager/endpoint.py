"""The manager's socket: its folder, its locks, and its limit on descriptors."""

import fcntl
import os
import resource
import socket
from pathlib import Path

from deployments.modelstore import wire
from deployments.modelstore.errors import StoreError

BACKLOG = 4096


def allow_many_clients() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def lock(path: Path) -> int:
    """Acquire a lock that ends with this process; return its descriptor, or raise `StoreError`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StoreError(f"{path}: another manager runs there") from error
    return descriptor


def listen(path: Path) -> socket.socket:
    """Listen at a path whose lock this process holds, so an existing socket is stale."""
    listener = wire.make_socket()
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(os.fspath(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StoreError(f"{path}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener
