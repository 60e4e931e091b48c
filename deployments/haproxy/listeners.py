"""The sockets that HAProxy listens on: opened once, and handed from one supervisor to the next."""

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from deployments.haproxy.ray_config import Address

#: The command by which a new supervisor asks its predecessor for the sockets.
HAND_OVER = b"sojourn hand-over"
#: Connections that wait while HAProxy is started again; the kernel's own limit applies, too.
BACKLOG = 4096
_TIMEOUT_S = 2.0
_MAX_SOCKETS = 16


class Predecessor(NamedTuple):
    """Another supervisor of this node, the admin socket of its HAProxy, and its listeners."""

    pid: int
    haproxy_socket: Path
    sockets: list[socket.socket]


def open_listener(address: Address) -> socket.socket:
    """Listen on an address.

    Raise an `OSError` with the address if it is in use or not this machine's.
    """
    is_ipv6 = ":" in address.host
    try:
        listener = socket.create_server(
            (address.host.strip("[]"), address.port),
            family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
            backlog=BACKLOG,
            dualstack_ipv6=is_ipv6,
        )
    except OSError as error:
        where = f"port {address.port} of {address.host or 'this machine'}"
        raise OSError(error.errno, f"{where}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def hand_over(
    client: socket.socket, haproxy_socket: Path, sockets: Iterable[socket.socket]
) -> None:
    message = f"{os.getpid()} {haproxy_socket}".encode()
    socket.send_fds(client, [message], [one.fileno() for one in sockets])


def take_over(admin_socket: Path) -> Predecessor | None:
    """Request the sockets of the supervisor that answers at `admin_socket`, if one does."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_TIMEOUT_S)
        client.connect(str(admin_socket))
        client.sendall(HAND_OVER + b"\n")
        message, descriptors, _, _ = socket.recv_fds(client, 1 << 16, _MAX_SOCKETS)
        if descriptors:
            pid, _, path = message.decode().partition(" ")
            sockets = [socket.socket(fileno=one) for one in descriptors]
            return Predecessor(int(pid), Path(path), sockets)
    return None
