"""Unix sockets on which HAProxy reaches the replicas of its own node, in place of TCP.

A request and its answer cost the two ends about 8 µs of CPU less than over TCP
(`benchmarks/live/replica_sockets.py`). A replica listens on both; those of other nodes, and on
other systems than Linux all, are reached over TCP.

The sockets have abstract names, which vanish with their process. Ray gives each replica of a node a
port of its own, so the port names it.

The kernel measures how long data has waited in a TCP socket, but not in a Unix socket. So HAProxy
sets a header with the time at which it sent a request on; both ends have the same clock.
"""

import os
import socket
import struct
import sys

#: HAProxy's header of requests: when it sent them on, in µs of `time.time`.
SENT_HEADER = b"x-sojourn-sent-us"
#: HAProxy's rules, for each backend.
RULES = (f"http-request set-header {SENT_HEADER.decode()} %[date(0,us)]",)

#: Longest abstract name. HAProxy fills its names up with zeros, which count.
_NAME_BYTES = 108
_CREDENTIALS = struct.Struct("iII")
_TIMEOUT_S = 0.25
#: Of a time in µs, until the year 2286.
_MOST_DIGITS = 16


def haproxy_address(port: int) -> str:
    """Return how HAProxy's configuration names the socket of the replica with this TCP port."""
    return f"abns@{_name(port)}"


def open_socket(port: int) -> socket.socket | None:
    """Return a socket for the replica with this TCP port, to listen on.

    None if the system has none, or another process took the name.
    """
    if sys.platform != "linux":
        return None
    one = socket.socket(socket.AF_UNIX)
    try:
        one.bind(_address(port))
    except OSError:
        one.close()
        return None
    return one


def is_served(port: int) -> bool:
    """Return whether a process of this user, on this node, listens on the socket of this port.

    Whoever has taken a replica's name before it must get none of its requests.
    """
    if sys.platform != "linux":
        return False
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_TIMEOUT_S)
        try:
            client.connect(_address(port))
            found = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return False
    _, user, _ = _CREDENTIALS.unpack(found)
    return bool(user == os.getuid())


def sent_at_us(value: bytes) -> int:
    """Return the time in a `SENT_HEADER`; 0 if it is none."""
    return int(value) if value.isdigit() and len(value) <= _MOST_DIGITS else 0


def _name(port: int) -> str:
    return f"sojourn-replica-{port}"


def _address(port: int) -> bytes:
    return (b"\0" + _name(port).encode()).ljust(_NAME_BYTES, b"\0")
