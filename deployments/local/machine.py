"""The needs of a local run: memory, free ports, CPUs and GPUs."""

import os
import socket
import sys
from contextlib import closing, suppress

import psutil
import pynvml

from deployments.errors import StartError

#: Memory that Ray, Serve and one replica of a small model use.
NEEDED_MEMORY_BYTES = 2 << 30
LOOPBACK = "127.0.0.1"
_TRIES = 10


def gpu_count() -> int:
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0


def check_room(num_cpus: float, num_gpus: float) -> None:
    """Raise a `StartError` if this machine has fewer CPUs or GPUs than the replicas take."""
    for what, needed, has in (
        ("num_cpus", num_cpus, os.cpu_count() or 1),
        ("num_gpus", num_gpus, gpu_count() if num_gpus else 0),
    ):
        if needed > has:
            raise StartError(
                f"{what}: the least replicas of the config take {needed:g}, and this machine has "
                f"{has}: lower {what} or min_replicas, or serve on a larger machine"
            )


def check_machine(host: str, port: int) -> None:
    """Raise a `StartError` of one line if nothing can be served on this machine."""
    if sys.platform != "linux":
        raise StartError(f"Serve's HAProxy mode runs on Linux, not on {sys.platform}")
    owner = _port_owner(host, port)
    if owner is not None:
        raise StartError(
            f"port {port} of {host} is in use{owner}; free it or choose another one with --port"
        )
    available = psutil.virtual_memory().available
    if available < NEEDED_MEMORY_BYTES:
        raise StartError(
            f"only {available >> 20} MiB of memory are free; Ray and a replica need "
            f"{NEEDED_MEMORY_BYTES >> 20} MiB"
        )


def _port_owner(host: str, port: int) -> str | None:
    """Return None if `port` is free. Otherwise describe its owner, or return "" if unknown."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if isinstance(error, PermissionError):
                return " (no permission to listen there)"
        else:
            return None
    with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
        for connection in psutil.net_connections("tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port:
                if connection.pid is None:
                    break
                name = psutil.Process(connection.pid).name()
                return f" by {name} (process {connection.pid})"
    return ""


class ReservedPorts:
    """Ports that no other local run takes before this one listens on them.

    A run looks for its ports some seconds before it listens there. Until it ends, an abstract Unix
    socket with the name of each port, which the kernel gives to one process only, keeps it.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, host: str, port: int) -> None:
        """Reserve a port, or raise a `StartError`: another run has reserved it."""
        if not self._reserve(host, port):
            raise StartError(
                f"another service that starts now takes port {port} of {host}; choose another one "
                "with --port"
            )

    def free(self, wanted: int) -> int:
        """Reserve `wanted` if that port of this machine is free, otherwise another one."""
        for port in (wanted, *[0] * _TRIES):
            with closing(socket.socket()) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with suppress(OSError):
                    probe.bind((LOOPBACK, port))
                    found = int(probe.getsockname()[1])
                    if self._reserve(LOOPBACK, found):
                        return found
        raise StartError("this machine has no free port")

    def close(self) -> None:
        for held in self._held:
            held.close()

    def _reserve(self, host: str, port: int) -> bool:
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(f"\0sojourn-port-{host}-{port}")
        except OSError:
            held.close()
            return False
        self._held.append(held)
        return True


def address_to_ask(host: str) -> str:
    """Return where this machine reaches what listens on `host`."""
    return LOOPBACK if host in ("", "*", "0.0.0.0", "::", "localhost") else host


def url_of(host: str, port: int) -> str:
    """Return the URL at which this machine reaches what listens on `host`."""
    address = address_to_ask(host)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
