"""Ports for servers that a test starts by a number."""

import itertools
import os
import socket

#: Below the ports that the kernel gives to connections, above those of Ray's workers, and not where
#: Ray Serve has its replicas. A port of the kernel's own choice may belong to anybody's connection
#: by the time that the server binds it.
PORTS = range(20_000, 30_000)
#: Processes that run at the same time begin so far apart.
_STRIDE = 97

_numbers = itertools.count(os.getpid() * _STRIDE)


def free_port() -> int:
    """Return a port on which nobody listens, and which this process has not had for long."""
    for number in itertools.islice(_numbers, len(PORTS)):
        port = PORTS[number % len(PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("this machine has no free port")
