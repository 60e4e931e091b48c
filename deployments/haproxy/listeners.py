"""The sockets that HAProxy listens on: opened once, and handed from one supervisor to the next."""

import json
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deployments.haproxy.ray_config import Address

#: The command by which a new supervisor asks its predecessor for the sockets.
HAND_OVER = b"sojourn hand-over"
#: Connections that wait while HAProxy is started again; the kernel's own limit applies, too.
BACKLOG = 4096
_TIMEOUT_S = 2.0
_MAX_SOCKETS = 16


@dataclass(frozen=True)
class Predecessor:
    """Another supervisor of this node, and the sockets that it handed over.

    Attributes
    ----------
    pid : int
        Its process. After ``SIGUSR1``, its HAProxy finishes its requests and ends.
    haproxy_socket : Path
        The admin socket of its HAProxy.
    sockets : mapping of Address to socket
        The sockets that its HAProxy listens on.
    """

    pid: int
    haproxy_socket: Path
    sockets: Mapping[Address, socket.socket]


def open_listener(address: Address, shared: bool) -> socket.socket:
    """Listen on an address.

    Parameters
    ----------
    address : Address
    shared : bool
        Let others listen on it as well (``SO_REUSEPORT``).

    Raises
    ------
    OSError
        The address is in use or not this machine's.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address.host.strip("[]"), address.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def hand_over(
    client: socket.socket, pid: int, haproxy_socket: Path, sockets: Mapping[Address, socket.socket]
) -> None:
    """Answer `HAND_OVER`: send the sockets and their addresses over a Unix socket."""
    content = {
        "pid": pid,
        "haproxy_socket": str(haproxy_socket),
        "addresses": [[address.host, address.port] for address in sockets],
    }
    descriptors = [one.fileno() for one in sockets.values()]
    socket.send_fds(client, [json.dumps(content).encode()], descriptors)


def take_over(admin_socket: Path) -> Predecessor | None:
    """Ask the supervisor that answers at `admin_socket` for its sockets.

    Returns
    -------
    Predecessor or None
        None if no supervisor answers there.
    """
    descriptors: Iterable[int] = ()
    with suppress(OSError, ValueError, KeyError, TypeError):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_TIMEOUT_S)
            client.connect(str(admin_socket))
            client.sendall(HAND_OVER + b"\n")
            message, descriptors, _, _ = socket.recv_fds(client, 1 << 16, _MAX_SOCKETS)
        taken = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        content = json.loads(message)
        addresses = [Address(host, port) for host, port in content["addresses"]]
        sockets = dict(zip(addresses, taken, strict=True))
        return Predecessor(int(content["pid"]), Path(content["haproxy_socket"]), sockets)
    return None
