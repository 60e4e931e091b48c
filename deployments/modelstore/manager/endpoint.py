"""The manager's socket: its folder, its locks, and its limit on descriptors."""

import fcntl
import os
import resource
import socket
from pathlib import Path

from deployments.modelstore import wire
from deployments.modelstore.errors import StoreError
from deployments.modelstore.private_folder import make_private

BACKLOG = 4096


def allow_many_clients() -> None:
    """Raise this process's soft limit on descriptors to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def own_folder(folder: Path, *, enterable: bool = False) -> None:
    """Create the socket's folder.

    Parameters
    ----------
    enterable : bool
        Whether other users may open its files, without listing them.

    Raises
    ------
    StoreError
        Another user could have put a socket there.
    """
    try:
        make_private(folder)
        if enterable:
            folder.chmod(0o711)
    except OSError as error:
        raise StoreError(str(error)) from error


def lock(path: Path) -> int:
    """Acquire a lock that ends with this process; return its descriptor.

    Raises
    ------
    StoreError
        Another process holds the lock, or its file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreError(str(error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StoreError(f"{path}: another manager runs there") from error
    return descriptor


def listen(path: Path, *, for_all: bool = False) -> socket.socket:
    """Listen at a path whose lock this process holds, so an existing socket is stale.

    Parameters
    ----------
    for_all : bool
        Whether other users may connect; who is admitted is decided by the user that the kernel
        names.

    Raises
    ------
    StoreError
        It is not possible, as when there is a file that is no socket.
    """
    listener = wire.make_socket()
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(os.fspath(path))
        path.chmod(0o666 if for_all else 0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StoreError(f"{path}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener
